"""Tracing of torch-level graphs to functional, decomposed ATen; later also their gradients."""

from firebrick.autodiff.inference import needs_grad, trace_function, trace_inference
from firebrick.autodiff.printer import show, show_nodes

__all__ = ["needs_grad", "show", "show_nodes", "trace_function", "trace_inference"]
