"""Constant folding: computations on frozen constants move to the recipe and run once, not at every call."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from firebrick.config import Config
from firebrick.fakes.node_values import device_of
from firebrick.fakes.promotion import ops
from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.graph.calls import shows_memory
from firebrick.passes.recipe import RecipeBuilder
from firebrick.targets.base import Target

aten = torch.ops.aten

_SMALL = 1 << 16
"""Elements up to which a folded constant is worth its memory whoever reads it."""
_MOST = 1 << 26
"""Bytes of one that a program copies to a GPU at each call."""
_GROWTH = 4
"""A folded constant may have this many times the elements of what it is made from."""

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu.default"
_LIBRARY = ops(f"mm.default addmm.default bmm.default baddbmm.default convolution.default {_ATTENTION}")
"""Ops that read their operands from memory, so that a computed one would be stored at every call."""


def copy_constants(graph: AtenGraph, targets: Mapping[str, Target], config: Config) -> AtenGraph:
    """Replace what the CPU makes of nothing or of frozen constants, and a GPU gets at each call, by derived constants.

        x + arange(n).to("cuda")   ->   x + derived

    The graph returns copies of them, for the caller may write to these.
    """
    del targets
    copies = graph.gm.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    copies = [n for n in copies if n.all_input_nodes and device_of(n) != device_of(n.args[0]) == "cpu"]
    copies = [n for n in copies if n.meta["val"].nbytes <= _MOST]
    if not copies or not config.fold:
        return graph
    recipe = RecipeBuilder(graph, made=True)
    for node in filter(recipe.is_constant, copies):
        read = recipe.use(recipe.copy(node), node)
        node.replace_all_uses_with(read, lambda user: user.op != "output")
        node.target, node.args, node.kwargs = aten.clone.default, (read,), {}
    return recipe.finish()


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
        readers, size = _readers(node, recipe), node.meta["val"].numel()
        grows = size > _GROWTH * sum(n.meta["val"].numel() for n in node.all_input_nodes) + _SMALL
        if readers and not grows and (size <= _SMALL or any(reader.target in _LIBRARY for reader in readers)):
            read = recipe.use(recipe.copy(node), node)
            node.replace_all_uses_with(read)
            changed = True
    return recipe.finish() if changed else graph


def _readers(node: fx.Node, recipe: RecipeBuilder) -> list[fx.Node]:
    """The nodes that are not constant and read `node`, through views or not; none when it is returned."""
    readers: list[fx.Node] = []
    stack = list(node.users)
    while stack:
        user = stack.pop()
        if user.op == "output":
            return []
        if shows_memory(user):
            stack.extend(user.users)
        elif not recipe.is_constant(user):
            readers.append(user)
    return readers
