"""Constant folding: computations on frozen constants move to the recipe and run once, not at every call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from firebrick.ir.graph.calls import shows_memory
from firebrick.passes.recipe import RecipeBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from firebrick.config import Config
    from firebrick.ir.graph.aten import AtenGraph
    from firebrick.targets.base import Target

aten = torch.ops.aten

_SMALL = 1 << 16
"""Elements up to which a folded constant is worth its memory whoever reads it."""
_GROWTH = 4
"""A folded constant may have this many times the elements of what it is made from."""

_LIBRARY = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)
"""Ops that read their operands from memory, so that a computed one would be stored at every call."""


def fold_constants(graph: AtenGraph, targets: Mapping[str, Target], config: Config) -> AtenGraph:
    """Replace what depends on frozen constants alone by derived constants.

        scale = rsqrt(var + eps) * weight; y = x * scale   ->   y = x * derived

    Views stay in the graph, for they cost nothing there. What the graph returns is not folded: the caller may
    write to it.
    """
    del targets
    if not config.fold or not graph.frozen:
        return graph
    recipe = RecipeBuilder(graph)
    changed = False
    for node in list(graph.gm.graph.nodes):
        if node.op != "call_function" or shows_memory(node) or not recipe.is_constant(node):
            continue
        if all(recipe.is_constant(user) and not shows_memory(user) for user in node.users):
            continue  # folded with what reads it
        readers = _readers(node, recipe)
        if readers is not None and _worth(node, readers):
            read = recipe.use(recipe.copy(node), node)
            node.replace_all_uses_with(read)
            changed = True
    if changed:
        graph.gm.graph.eliminate_dead_code()
        recipe.finish()
    return graph


def _readers(node: fx.Node, recipe: RecipeBuilder) -> list[fx.Node] | None:
    """The nodes that are not constant and read `node`, through views or not; None when it is returned."""
    readers: list[fx.Node] = []
    stack = list(node.users)
    while stack:
        user = stack.pop()
        if user.op == "output":
            return None
        if shows_memory(user):
            stack.extend(user.users)
        elif not recipe.is_constant(user):
            readers.append(user)
    return readers


def _worth(node: fx.Node, readers: list[fx.Node]) -> bool:
    if not readers:
        return False
    size = node.meta["val"].numel()
    operands = sum(n.meta["val"].numel() for n in node.all_input_nodes)
    if size > _GROWTH * operands + _SMALL:
        return False
    return size <= _SMALL or any(reader.target in _LIBRARY for reader in readers)
