"""Tracing of torch-level graphs to functional, decomposed ATen, alone or with their gradients."""

from firebrick.trace.absent import backward_given, parted
from firebrick.trace.grad_off import GradOff, mode_at_end, without_switches
from firebrick.trace.gradient_buckets import bucket_bytes, bucket_starts, shared_starts
from firebrick.trace.inference_trace import needs_grad, trace_function
from firebrick.trace.joint import JointGraph, trace_inference, trace_joint
from firebrick.trace.joint_split import Division, bytes_saved, divide
from firebrick.trace.layer_plan import backward_layers, forward_layers, layer_keys, layer_order, layer_plan
from firebrick.trace.printer import show, show_joint, show_nodes
from firebrick.trace.recompute import min_cut, save_needed
from firebrick.trace.result_cuts import gradients_in, keep_histories
