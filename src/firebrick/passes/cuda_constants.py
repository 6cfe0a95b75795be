"""What a program makes of nothing on the CPU and copies to a GPU is computed once, and not waited for at each call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from firebrick.fakes.node_values import device_of
from firebrick.passes.recipe import RecipeBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firebrick.config import Config
    from firebrick.ir.graph.aten import AtenGraph
    from firebrick.targets.base import Target

aten = torch.ops.aten

_MOST = 1 << 26
"""Bytes that such a constant may have."""


def copy_constants(graph: AtenGraph, targets: Mapping[str, Target], config: Config) -> AtenGraph:
    """Replace such tensors by derived constants, and by copies of them where the graph returns them."""
    copies = graph.gm.graph.find_nodes(op="call_function", target=aten._to_copy.default)
    copies = [n for n in copies if device_of(n) != device_of(n.args[0]) == "cpu" and n.meta["val"].nbytes <= _MOST]
    if not copies or not config.fold:
        return graph
    recipe = RecipeBuilder(graph, made=True)
    for node in filter(recipe.is_constant, copies):
        read = recipe.use(recipe.copy(node), node)
        node.replace_all_uses_with(read, lambda user: user.op != "output")
        node.target, node.args, node.kwargs = aten.clone.default, (read,), {}
    graph.gm.graph.eliminate_dead_code()
    recipe.finish()
    return graph
