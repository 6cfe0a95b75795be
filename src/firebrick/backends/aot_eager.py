"""The backends on eager kernels: of captured graphs as they are, and of what they are as functional ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from firebrick import trace
from firebrick.backends.aten import run_aten, run_joint, with_views
from firebrick.config import Config
from firebrick.fakes.segments import Segments


def aot_eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the traced ATen graph, or the traced forward and backward where gradients are needed."""
    if trace.needs_grad(gm, example_inputs):
        if starts := trace.shared_starts(gm):
            return Segments.cut(gm, starts, aot_eager)
        return with_views(run_joint(gm, example_inputs), gm)
    return with_views(run_aten(trace.trace_inference(gm, example_inputs, Config())), gm)


def eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the graph as it was captured."""
    return gm.forward
