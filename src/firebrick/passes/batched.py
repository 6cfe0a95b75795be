"""Products of many small matrices: one kernel of ours for all of them instead of a library call for each.

bmm(x, y)   ->   firebrick::linear(x, y, None, None, None, "none", [])
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import torch

from firebrick.extend.linear import linear_op, panel_columns
from firebrick.passes.alone import alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import fx

    from firebrick.config import Config
    from firebrick.extend.graph import AtenGraph
    from firebrick.passes.alone import Choose

__all__ = ["batch_products"]

aten = torch.ops.aten

_LARGEST = 1 << 21
"""Multiplications of one product up to which our kernel is preferred. Measured, two threads, us, the library last:
4096 of 1x16x16 128 and 314, 256 of 8x8x8 17 and 20, 64 of 64x64x64 177 and 204, 16 of 128x128x128 333 and 363."""


def batch_products(graph: AtenGraph, config: Config, choose: Choose | None = None) -> AtenGraph:
    """Give batches of small matrices to our kernel.

    choose: measures both forms of each; without it the cost model's is taken.
    """
    if config.numerics == "eager" or panel_columns(config) == 0:
        return graph

    def form_of(node: fx.Node) -> str:
        forms = _forms(node)
        if choose is None or len(forms) < 2:
            return forms[0]
        rewrites = {form: partial(_rewrite, form_of=partial(_given, form)) for form in forms}
        return choose(alone([node], lambda _: False), rewrites)

    return _rewrite(graph, form_of)


def _given(form: str, _node: fx.Node) -> str:
    return form


def _rewrite(graph: AtenGraph, form_of: Callable[[fx.Node], str]) -> AtenGraph:
    nodes = graph.gm.graph
    for node in nodes.find_nodes(op="call_function", target=aten.bmm.default):
        if form_of(node) == "own":
            with nodes.inserting_before(node):
                made = nodes.call_function(linear_op, (*node.args, None, None, None, "none", []))
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            nodes.erase_node(node)
    return graph


def _forms(node: fx.Node) -> list[str]:
    """What may compute it, best guess first."""
    x, y = (arg.meta["val"] for arg in node.args)  # type: ignore[union-attr]
    sizes = (*x.shape, y.shape[2])
    if node.kwargs or x.device.type != "cpu" or x.dtype is not torch.float32 or not all(type(n) is int for n in sizes):
        return ["call"]
    if not math.prod(sizes) or not any(n == 1 or s == 1 for n, s in zip(y.shape[1:], y.stride()[1:], strict=True)):
        return ["call"]
    return ["own", "call"] if math.prod(sizes[1:]) <= _LARGEST else ["call", "own"]
