"""Products of many small matrices: one kernel of ours for all of them instead of a library call for each.

bmm(x, y)   ->   firebrick::linear(x, y, None, None, None, "none", [])
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from firebrick.fakes.node_values import device_of
from firebrick.ir.loops.program import device_type
from firebrick.ir.operators.linear_op import linear_op
from firebrick.passes.alone import alone
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
        rewrites = {form: partial(_rewrite, form_of=partial(_form_of, form)) for form in forms}
        return choose(alone([node], lambda _: False), rewrites)

    return _rewrite(graph, form_of)


def _form_of(form: str, _node: fx.Node) -> str:
    return form


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
