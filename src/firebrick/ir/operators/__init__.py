"""Operators of the `firebrick` namespace, which stand for hand-written kernels."""
