"""Matmuls of one matrix by several constant weights as one, on a GPU, which few of their rows leave idle:

addmm(a, x, t(V)), addmm(b, x, t(W))   ->   both halves of addmm(cat(a, b), x, t(cat(V, W)))

The weights are there twice then, so the target says how many bytes that is worth, and all together take at most a part
of what the graph's constants take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from firebrick.config import Config
from firebrick.fakes.node_values import absorb, device_of
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.loops.program import device_type
from firebrick.passes.prepack import SAME_ORDER
from firebrick.passes.recipe import RecipeBuilder, emit
from firebrick.targets.base import Target

aten = torch.ops.aten
_MOST = 4
"""Parts of the bytes of all constants of which one may be there twice."""


def merge_products(graph: AtenGraph, targets: Mapping[str, Target], config: Config) -> AtenGraph:
    """Multiply by several weights at once where the target gains by it."""
    if not config.prepack or not graph.frozen:
        return graph
    recipe = RecipeBuilder(graph)
    room = sum(t.nbytes for t in graph.constants.values() if isinstance(t, torch.Tensor)) // _MOST
    changed: dict[fx.Node, torch.Tensor] = {}
    for nodes in _groups(graph, recipe):
        if len(nodes) < 2:
            continue
        (rows, depth), columns = nodes[0].args[-2].meta["val"].shape, [n.meta["val"].shape[1] for n in nodes]  # type: ignore[union-attr]
        nbytes = depth * sum(columns) * nodes[0].meta["val"].element_size()
        target = targets[device_type(device_of(nodes[0]))]
        if nbytes <= room and target.choices("firebrick::products", (rows, depth, columns, nbytes))[0].name == "merged":
            room -= nbytes
            _merge(nodes, recipe, changed)
    return recipe.finish(changed) if changed else graph


def _groups(graph: AtenGraph, recipe: RecipeBuilder) -> list[list[fx.Node]]:
    """Matmuls of one matrix by constant weights."""
    groups: dict[Any, list[fx.Node]] = {}
    for node in graph.gm.graph.nodes:
        if node.op != "call_function" or node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs:
            continue
        *bias, x, weight = node.args
        if not recipe.is_constant(weight) or not all(map(recipe.is_constant, bias)) or recipe.is_constant(x):
            continue
        shape, val = x.meta["val"].shape, weight.meta["val"]
        added = tuple(b.meta["val"].dim() for b in bias)
        if val.stride(0) != 1 or added not in ((), (1,)) or not all(isinstance(n, int) for n in (*shape, *val.shape)):
            continue
        if all(b.meta["val"].shape[0] == val.shape[1] for b in bias):
            groups.setdefault((_root(x), tuple(shape), val.dtype, added), []).append(node)
    return list(groups.values())


def _root(node: fx.Node) -> fx.Node:
    """What a node shows in another shape."""
    while node.op == "call_function" and node.target in SAME_ORDER:
        node = node.args[0]  # type: ignore[assignment]
    return node


def _merge(nodes: list[fx.Node], recipe: RecipeBuilder, changed: dict[fx.Node, torch.Tensor]) -> None:
    first = nodes[0]
    x: Any = first.args[-2]
    mode = first.meta["val"].fake_mode

    def joined(parts: list[fx.Node], name: str) -> fx.Node:
        with mode, torch.no_grad():
            whole = torch.cat([p.meta["val"] for p in parts])
        return recipe.use(recipe.call(name, aten.cat.default, parts, like=whole), first)

    weights = [recipe.copy(n.args[-1]) for n in nodes]  # type: ignore[arg-type]
    name = weights[0].name
    rows = joined([recipe.call(f"{w.name}_rows", aten.t.default, w) for w in weights], f"{name}_joined")
    bias = [joined([recipe.copy(n.args[0]) for n in nodes], f"{name}_added")] if len(first.args) == 3 else []  # type: ignore[arg-type]

    whole = emit(first, first.target, *bias, x, emit(first, aten.t.default, rows))
    absorb(whole, nodes)
    start = 0
    for node in nodes:
        end = start + node.meta["val"].shape[1]
        part = emit(first, aten.slice.Tensor, whole, 1, start, end)
        changed[part] = node.meta["val"]
        node.replace_all_uses_with(part)
        start = end
