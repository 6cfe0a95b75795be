"""The CPU: facts, C++ texts of kernels, those written by hand, and what builds and loads them."""
