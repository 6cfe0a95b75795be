"""Graphs that switch gradients off before they compute anything: an optimizer's step, a model under `no_grad`.

Such a graph is compiled as if gradients had been off at its start, so nothing is traced or saved for a backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from firebrick.ir.graph.calls import copy_node
from firebrick.trace.inference_trace import GRAD_MODE_TARGETS


def mode_at_end(gm: fx.GraphModule) -> bool | None:
    """The grad mode that a graph leaves, if gradients are off in all that it computes; None if they are not."""
    mode = torch.is_grad_enabled()
    if not mode:
        return None  # a plain graph without gradients, or one that switches them on
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in GRAD_MODE_TARGETS:
            if len(node.args) != 1 or not isinstance(node.args[0], bool):
                return None
            mode = node.args[0]
        elif mode and node.op.startswith("call"):
            return None
    return mode if any(n.op == "call_function" and n.target in GRAD_MODE_TARGETS for n in gm.graph.nodes) else None


def without_switches(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of such a graph without the calls that switch."""
    graph = fx.Graph(tracer_cls=gm.graph._tracer_cls)
    copy_of: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        if node.target not in GRAD_MODE_TARGETS:
            copy_of[node] = copy_node(graph, node, copy_of.__getitem__)
    plain = fx.GraphModule(gm, graph)
    plain.meta.update(gm.meta)
    return plain


class GradOff:
    """What was compiled of such a graph, run with gradients off; `after` is the mode that the graph leaves."""

    def __init__(self, compiled: Callable[..., Any], after: bool) -> None:
        self.compiled, self.after = compiled, after

    def __call__(self, *inputs: Any) -> Any:
        """Run it."""
        torch._C._set_grad_enabled(False)
        try:
            return self.compiled(*inputs)
        finally:
            torch._C._set_grad_enabled(self.after)
