"""Tracing of torch-level graphs to functional, decomposed ATen; later also their gradients."""

from firebrick.autodiff.inference import needs_grad, trace_inference

__all__ = ["needs_grad", "trace_inference"]
