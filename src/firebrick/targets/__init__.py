"""Machines: what the compiler asks of each (`base`), and one folder for each that it writes kernels for."""
