"""Guards: where values came from, what must hold of them, and plans that are checked natively."""
