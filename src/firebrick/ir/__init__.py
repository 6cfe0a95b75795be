"""What stages hand to each other: index algebra, ATen graphs, loops, kernels."""
