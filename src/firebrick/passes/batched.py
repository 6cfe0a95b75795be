"""Products whose factors are both computed: of many small matrices in one kernel of ours, and where it measures faster
single ones, as in training, whose weights change from call to call and are never packed; and attention.

bmm(x, y)                  ->   firebrick::linear(x, y, None, None, None, "none", [])
addmm(b, x, y)             ->   firebrick::linear(x, y, None, b, None, "none", [])
mm(t(x), y)                ->   firebrick::linear(clone(t(x)), y, None, None, None, "none", [])
attention(q, k, v, mask)   ->   firebrick::attention(q, k, v, mask, scale, causal)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import fx

from firebrick.config import Config
from firebrick.fakes.node_values import device_of
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.loops.program import device_type
from firebrick.ir.operators.linear_op import attention_op, linear_op
from firebrick.passes.alone import ATTENTION, Choose, alone, subject_of
from firebrick.passes.recipe import RecipeBuilder, emit
from firebrick.targets.base import Target

aten = torch.ops.aten


def computed_products(
    graph: AtenGraph, targets: Mapping[str, Target], config: Config, choose: Choose | None = None
) -> AtenGraph:
    """Give products to the target's kernels.

    choose: measures the forms of each; without it the cheapest by the target's estimate is taken.
    """
    del config
    is_constant = RecipeBuilder(graph).is_constant
    for op, (forms_of, write) in _PRODUCTS.items():
        for node in graph.gm.graph.find_nodes(op="call_function", target=op):
            target = targets.get(device_type(device_of(node)))
            if target is None or (write is _replace and op is not aten.bmm.default and is_constant(node.args[-1])):  # type: ignore[arg-type]
                continue
            form, *others = forms_of(node, target) or ["call"]
            if choose is not None and others:
                part = alone([node, *(node.users if op is ATTENTION else ())], lambda _: False)
                forms, (_, (x, *_)) = (form, *others), subject_of(node)  # type: ignore[misc]
                copies = x.dim() == 2 and x.stride(1) != 1
                passes = {name: int(copies and name != "call") for name in forms}
                form = choose(part, {name: partial(_rewrite, form=name) for name in forms}, passes)
            if form != "call":
                write(node, form)
    return graph


def _rewrite(graph: AtenGraph, form: str) -> AtenGraph:
    node = next(node for node in graph.gm.graph.nodes if node.target in _PRODUCTS)
    if form != "call":
        _PRODUCTS[node.target][1](node, form)
    return graph


def _of_batches(node: fx.Node, target: Target) -> list[str]:
    x, y = (arg.meta["val"] for arg in node.args)  # type: ignore[union-attr]
    known = not node.kwargs and all(type(n) is int for n in (*x.shape, y.shape[2]))
    return [c.name for c in target.choices("aten::bmm", (x, y))] if known else []


_UNPACKED = frozenset({"own", "dots", "panels"})
"""Forms that read a weight where it is."""


def _of_matrices(node: fx.Node, target: Target) -> list[str]:
    """Forms of a matmul in float32, of sizes that are numbers, without gaps."""
    *bias, x, y = (arg.meta["val"] for arg in node.args)  # type: ignore[union-attr]
    sizes, floats = (*x.shape, *y.shape), all(t.dtype is torch.float32 for t in (*bias, x, y))
    if node.kwargs or not floats or not all(type(n) is int and n > 1 for n in sizes) or 1 not in y.stride():
        return []
    if 1 not in x.stride() or not all(b.shape == y.shape[1:] and b.stride() == (1,) for b in bias):
        return []
    return ["call", *(c.name for c in target.choices("aten::mm", (x, y)) if c.name in _UNPACKED)]


def _of_attention(node: fx.Node, target: Target) -> list[str]:
    """Forms of attention that drops nothing and is not trained."""
    if node.args[3:4] not in ((), (0.0,)) or [(r.target, *r.args) for r in node.users] != [(operator.getitem, node, 0)]:
        return []
    choices = target.choices(*subject_of(node))  # type: ignore[misc]
    sizes = [n for t in node.args[:3] for n in t.meta["val"].shape]  # type: ignore[union-attr]
    return [c.name for c in (choices if all(type(n) is int for n in sizes) else choices[:1])]


def _replace(node: fx.Node, form: str) -> None:
    """Our kernel in place of a product, on a copy of a factor whose rows do not lie along the sum."""
    *bias, x, y = node.args
    rows: Any = x
    if rows.meta["val"].dim() == 2 and rows.meta["val"].stride(1) != 1:
        rows = emit(node, aten.clone.default, x, memory_format=torch.contiguous_format)
    named = [form] if form != "own" else []
    with node.graph.inserting_before(node):
        product = node.graph.call_function(linear_op, (rows, y, None, *(bias or [None]), None, "none", [], *named))
    product.meta = dict(node.meta)
    node.replace_all_uses_with(product)
    node.graph.erase_node(node)


def _attend(node: fx.Node, _: str) -> None:
    """Our kernel in place of attention, whose first result alone is read; the other's lies in memory alike."""
    (reader,) = node.users
    scale = node.kwargs.get("scale")
    scale = reader.meta["val"].shape[3] ** -0.5 if scale is None else scale
    args = (*node.args[:3], node.kwargs.get("attn_mask"), scale, node.args[4:5] == (True,))
    with node.graph.inserting_before(node):
        attended = node.graph.call_function(attention_op, args)
    attended.meta = dict(reader.meta)
    reader.replace_all_uses_with(attended)
    for gone in (reader, node):
        node.graph.erase_node(gone)


_PRODUCTS: Mapping[Any, tuple[Callable[[fx.Node, Target], list[str]], Callable[[fx.Node, str], None]]] = {
    ATTENTION: (_of_attention, _attend),
    aten.bmm.default: (_of_batches, _replace),
    aten.mm.default: (_of_matrices, _replace),
    aten.addmm.default: (_of_matrices, _replace),
}
"""Op -> its forms, best guess first, and what writes one that is not the call. """
