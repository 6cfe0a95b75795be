"""Integer index algebra: hash-consed expressions with ranges."""
