"""Results of a graph that later results are made of, each with a gradient of its own as in eager mode.

Where a graph returns `y` and a `loss` that is computed from it, autograd has a node for what leads to `y` and one for
what leads from `y` to `loss`, so that the gradient of `loss` for `y` is known between them. The forward is still one
graph: its trace begins a new history at `y`.
"""

from __future__ import annotations

import operator
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from firebrick.fakes.node_values import tensors_in
from firebrick.ir.graph.calls import is_mutating
from firebrick.ir.graph.nested import Nested

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from torch import fx

_MOST = 8
"""More results have no node of their own: each is a graph to compile."""


class NotApart(Exception):
    """Histories on the two sides of a result turn out to share what they save."""


def stages_of(graph: fx.Graph, hidden: Sequence[str] = ()) -> list[fx.Node]:
    """The results of a torch-level graph at which a new history begins, in order.

    All that later results need from before such a result comes through it, and its memory is no other result's and not
    written to later. hidden: names of nodes that are results for this alone.
    """
    returned = graph.output_node().all_input_nodes
    shown = dict.fromkeys((*returned, *(n for n in graph.nodes if n.name in hidden)))
    results = [n for n in shown if _has_history(n)]
    if len(results) < 2 or any(n.target is torch.autograd.forward_ad.make_dual for n in graph.nodes):  # has tangents
        return []
    given = [n for n in graph.nodes if n.op in ("placeholder", "get_attr")]
    holders = Counter(at for n in (*given, *shown) for at in _memory(n))
    last_write = {at: n for n in graph.nodes if is_mutating(n) for a in n.all_input_nodes for at in _memory(a)}
    number = {node: i for i, node in enumerate(graph.nodes)}
    stages = []
    for node in sorted(results, key=number.__getitem__):
        memory = _memory(node)
        writes = [number[last_write[at]] for at in memory if at in last_write]
        if len(memory) != 1 or holders[memory[0]] > 1 or max(writes, default=-1) > number[node]:
            continue
        behind = _reached([node], lambda n: n.users) & set(results) - {node}
        before = _reached([node], lambda n: n.all_input_nodes) - {node}
        ends = {node, *(n for n in results if n.name in hidden and n.all_input_nodes == node.all_input_nodes)}
        if behind and before.isdisjoint(_reached(behind, lambda n: n.all_input_nodes, ends)):
            stages.append(node)
    return stages if hidden else stages[-_MOST:]


def ends_of(node: fx.Node) -> list[str] | None:
    """Names of the tensors that a call of a custom Function gives to other calls; None where it is
    within another, or a hook."""
    if node.op != "call_function" or isinstance(node.target, Nested):
        return None
    several = isinstance(node.meta.get("val"), (tuple, list))
    ends = [n for n in node.users if n.target is operator.getitem] if several else [node]
    return [n.name for n in ends if _has_history(n) and any(map(_has_history, n.users))]


def in_order(groups: Sequence[tuple[int, ...]], needs: Sequence[tuple[int, Iterable[int]]]) -> list[tuple[int, ...]]:
    """Groups of tangents so that each comes behind those that it needs: (a tangent, those whose history begins there).

    Raises:
        NotApart: two need each other.
    """
    waiting, done = list(groups), list[tuple[int, ...]]()
    while waiting:
        open_ = {t for group in waiting for t in group}
        ready = [g for g in waiting if not any(t in open_ and not set(g).isdisjoint(by) for t, by in needs)]
        if not ready:
            raise NotApart
        done += ready
        waiting = [g for g in waiting if g not in ready]
    return done


def _reached(
    nodes: Iterable[fx.Node], next_to: Callable[[fx.Node], Any], stops: Collection[fx.Node] = ()
) -> set[fx.Node]:
    """The calls with a history that lead to the nodes or that these lead to, but for the stops and those beyond."""
    reached, waiting = {*stops}, list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in reached and _has_history(node):
            reached.add(node)
            waiting += next_to(node)
    return reached.difference(stops)


def keep_histories(graph: fx.Graph) -> None:
    """Have the nodes tell in copies of the graph too, whose values have no history, whether they have one."""
    for node in graph.nodes:
        node.meta["history"] = _has_history(node)


def _has_history(node: fx.Node) -> bool:
    if "history" in node.meta:
        return bool(node.meta["history"])
    return node.op.startswith("call") and any(t.requires_grad for t in tensors_in(node.meta.get("val")))


def _memory(node: fx.Node) -> list[int]:
    tensors = list(tensors_in(node.meta.get("val")))
    return [t.untyped_storage()._cdata for t in tensors if t.layout == torch.strided]
