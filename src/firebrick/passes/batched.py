"""Products whose factors are both computed: of many small matrices in one kernel of ours, and where it measures faster
single ones, as in training, whose weights change from call to call and are never packed.

bmm(x, y)           ->   firebrick::linear(x, y, None, None, None, "none", [])
addmm(b, x, y)      ->   firebrick::linear(x, y, None, b, None, "none", [])
mm(t(x), y)         ->   firebrick::linear(clone(t(x)), y, None, None, None, "none", [])
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from firebrick.fakes.node_values import device_of
from firebrick.ir.loops.program import device_type
from firebrick.ir.operators.linear_op import linear_op
from firebrick.passes.alone import alone
from firebrick.passes.recipe import RecipeBuilder
from firebrick.targets.base import CALL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import fx

    from firebrick.config import Config
    from firebrick.ir.graph.aten import AtenGraph
    from firebrick.passes.alone import Choose
    from firebrick.targets.base import Choice, Target

aten = torch.ops.aten


def batch_products(
    graph: AtenGraph, targets: Mapping[str, Target], config: Config, choose: Choose | None = None
) -> AtenGraph:
    """Give batches of small matrices to the target's kernel.

    choose: measures both forms of each; without it the cheapest by the target's estimate is taken.
    """
    del config

    def form_of(node: fx.Node) -> str:
        forms = [c.name for c in _choices(node, targets)]
        if choose is None or len(forms) < 2:
            return forms[0]
        rewrites = {f: partial(_rewrite, form_of=lambda _, f=f: f) for f in forms}  # type: ignore[misc]
        return choose(alone([node], lambda _: False), rewrites)

    return _rewrite(graph, form_of)


def single_products(
    graph: AtenGraph, targets: Mapping[str, Target], config: Config, choose: Choose | None = None
) -> AtenGraph:
    """Give matmuls by weights that are no constants to a kernel of ours that was measured to be faster."""
    del config
    if choose is None:
        return graph
    is_constant = RecipeBuilder(graph).is_constant
    for op in (aten.mm.default, aten.addmm.default):
        for node in graph.gm.graph.find_nodes(op="call_function", target=op):
            target = targets.get(device_type(device_of(node)))
            if target is None or not _takes(node) or is_constant(node.args[-1]):  # type: ignore[arg-type]
                continue
            *_, x, y = (arg.meta["val"] for arg in node.args)
            forms = ["call", *(c.name for c in target.choices("aten::mm", (x, y)) if c.name in _UNPACKED)]
            rewrites = {form: partial(_as_linear, form=form) for form in forms}
            form = choose(alone([node], lambda _: False), rewrites) if len(forms) > 1 else "call"
            if form != "call":
                _replace(node, form)
    return graph


_UNPACKED = frozenset({"own", "dots", "panels"})
"""Forms that read a weight where it is."""


def _takes(node: fx.Node) -> bool:
    """Whether our kernels compute a matmul: in float32, of sizes that are numbers, without gaps."""
    *bias, x, y = (arg.meta["val"] for arg in node.args)  # type: ignore[union-attr]
    sizes, floats = (*x.shape, *y.shape), all(t.dtype is torch.float32 for t in (*bias, x, y))
    if node.kwargs or not floats or not all(type(n) is int and n > 1 for n in sizes) or 1 not in y.stride():
        return False
    return 1 in x.stride() and all(b.shape == y.shape[1:] and b.stride() == (1,) for b in bias)


def _as_linear(graph: AtenGraph, form: str) -> AtenGraph:
    for op in (aten.mm.default, aten.addmm.default):
        for node in graph.gm.graph.find_nodes(op="call_function", target=op):
            if form != "call":
                _replace(node, form)
    return graph


def _replace(node: fx.Node, form: str) -> None:
    """Our kernel in place of a matmul, on a copy of a factor whose rows do not lie along the sum."""
    *bias, x, y = node.args
    rows: Any = x
    with node.graph.inserting_before(node):
        if rows.meta["val"].stride(1) != 1:
            laid: dict[str, Any] = {"memory_format": torch.contiguous_format}
            rows = node.graph.call_function(aten.clone.default, (x,), laid)
            with node.meta["val"].fake_mode:
                rows.meta = {**node.meta, "val": torch.empty(x.meta["val"].shape, dtype=torch.float32)}  # type: ignore[union-attr]
        named = [form] if form != "own" else []
        args = (rows, y, None, *(bias or [None]), None, "none", [], *named)
        product = node.graph.call_function(linear_op, args)
    product.meta = dict(node.meta)
    node.replace_all_uses_with(product)
    node.graph.erase_node(node)


def _rewrite(graph: AtenGraph, form_of: Callable[[fx.Node], str]) -> AtenGraph:
    nodes = graph.gm.graph
    for node in nodes.find_nodes(op="call_function", target=aten.bmm.default):
        if form_of(node) == "own":
            with nodes.inserting_before(node):
                product = nodes.call_function(linear_op, (*node.args, None, None, None, "none", []))
            product.meta = dict(node.meta)
            node.replace_all_uses_with(product)
            nodes.erase_node(node)
    return graph


def _choices(node: fx.Node, targets: Mapping[str, Target]) -> tuple[Choice, ...]:
    """What may compute it, best guess first."""
    x, y = (arg.meta["val"] for arg in node.args)  # type: ignore[union-attr]
    target = targets.get(device_type(device_of(node)))
    if target is None or node.kwargs or not all(type(n) is int for n in (*x.shape, y.shape[2])):
        return (CALL,)
    return target.choices("aten::bmm", (x, y))
