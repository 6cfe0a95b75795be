"""Tracing of torch-level graphs to functional, decomposed ATen, alone or with their gradients."""

from firebrick.autodiff.absent import backward_given
from firebrick.autodiff.grad_off import GradOff, mode_at_end, without_switches
from firebrick.autodiff.inference import needs_grad, trace_function, trace_inference
from firebrick.autodiff.joint import JointGraph, trace_joint
from firebrick.autodiff.partition import min_cut, save_needed
from firebrick.autodiff.printer import show, show_joint, show_nodes
from firebrick.autodiff.split import Division, divide

__all__ = [
    "Division",
    "GradOff",
    "JointGraph",
    "backward_given",
    "divide",
    "min_cut",
    "mode_at_end",
    "needs_grad",
    "save_needed",
    "show",
    "show_joint",
    "show_nodes",
    "trace_function",
    "trace_inference",
    "trace_joint",
    "without_switches",
]
