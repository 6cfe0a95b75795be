"""Results of a graph that later results are made of, each with a gradient of its own as in eager mode.

Where a graph returns `y` and a `loss` that is computed from it, autograd has a node for what leads to `y` and one for
what leads from `y` to `loss`, so that the gradient of `loss` for `y` is known between them. The forward is still one
graph: its trace begins a new history at `y`.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from firebrick.ir.graph.calls import is_mutating, tensors_in, written_by
from firebrick.ir.graph.nested import Nested

_MOST = 8
"""More results have no node of their own: each is a graph to compile."""


class NotApart(Exception):
    """Histories on the two sides of a result turn out to share what they save."""


class Cuts(NamedTuple):
    """Results of a torch-level graph at which a history can begin, and the node behind which it then does.

    ends: all of them. Their memory is no other result's, and the history begins behind the last write to it.
    stages: those where all that later results need from before comes through such results.
    behind: for each result, those of `ends` that it is made of without others between them.
    """

    ends: dict[fx.Node, fx.Node]
    stages: dict[fx.Node, fx.Node]
    behind: dict[fx.Node, set[fx.Node]]


def cuts_of(graph: fx.Graph, hidden: Sequence[str] = ()) -> Cuts:
    """Find where histories can begin. hidden: names of nodes that are results for this alone."""
    returned = graph.output_node().all_input_nodes
    shown = dict.fromkeys((*returned, *(n for n in graph.nodes if n.name in hidden)))
    dual = any(n.target is torch.autograd.forward_ad.make_dual for n in graph.nodes)  # its tangents would be lost
    memory = {n: memory_of(n) for n in graph.nodes}
    results = [n for n in shown if has_history(n)]
    given = [n for n in graph.nodes if n.op in ("placeholder", "get_attr")]
    holders = Counter(at for n in (*given, *results) for at in memory[n])
    number = {node: i for i, node in enumerate(graph.nodes)}
    writes: dict[int, list[fx.Node]] = defaultdict(list)
    for node in filter(is_mutating, graph.nodes):
        declared = written_by(node.target, node.args, node.kwargs) or [node.args[:1], node.kwargs.get("out")]
        written = [a for a in pytree.tree_leaves(declared) if isinstance(a, fx.Node)] or node.all_input_nodes
        for at in dict.fromkeys(at for a in written for at in memory[a]):
            writes[at].append(node)
    flows = {n for n in graph.nodes if has_history(n) or is_mutating(n)}

    def content(node: fx.Node, user: fx.Node) -> list[fx.Node]:
        between = range(number[node], number[user])
        return [node, *(w for at in memory[node] for w in writes.get(at, ()) if number[w] in between)]

    def history(result: fx.Node) -> tuple[set[fx.Node], set[fx.Node]]:
        """The calls that lead to a result, and the stages that these begin at."""
        calls, begun = set[fx.Node](), set[fx.Node]()
        waiting = content(result, graph.output_node())
        while waiting:
            node = waiting.pop()
            if node in flows and node not in calls:
                calls.add(node)
                for a in node.all_input_nodes:
                    begins = a in stages and number[stages[a]] < number[node]
                    begun.update([a] * begins)
                    waiting += [] if begins else content(a, node)
        return calls, begun

    alone = [n for n in results if not dual and len(memory[n]) == 1 and holders[memory[n][0]] == 1]
    last = {n: max(content(n, graph.output_node()), key=number.__getitem__) for n in results}
    asked = gradients_in(graph)[-1:]  # it follows the history from before
    last = {n: max([end, *asked], key=number.__getitem__) for n, end in last.items()}
    last = dict(sorted(last.items(), key=lambda row: number[row[1]]))
    ends = stages = {n: end for n, end in last.items() if n in alone}
    behind = {n: history(n)[1] for n in last}
    stages = {n: end for n, end in ends.items() if end not in asked}
    while True:
        rows = {n: history(n) for n in dict.fromkeys((*stages, *results))}
        before: dict[fx.Node, set[fx.Node]] = {}
        for n, (_, begun) in rows.items():
            before[n] = begun.union(*[before[s] for s in begun])
        mixed = {s for n in rows for s in before[n] if not rows[s][0].isdisjoint(rows[n][0])}
        apart = set().union(*before.values()) - mixed
        least = 0 if hidden else len(apart) - _MOST
        if len(apart) == len(stages) and least <= 0:
            return Cuts(ends, stages, behind)
        stages = dict([row for row in stages.items() if row[0] in apart][max(least, 0) :])


def gradients_in(graph: fx.Graph) -> list[fx.Node]:
    """The calls of `torch.autograd.grad`."""
    return [n for n in graph.nodes if n.target is torch.autograd.grad]


def ends_of(node: fx.Node) -> list[str] | None:
    """Names of the tensors that a call of a custom Function gives to other calls; None where it is
    within another, or a hook."""
    if node.op != "call_function" or isinstance(node.target, Nested):
        return None
    several = isinstance(node.meta.get("val"), (tuple, list))
    ends = [n for n in node.users if n.target is operator.getitem] if several else [node]
    return [n.name for n in ends if has_history(n) and any(map(has_history, n.users))]


def in_order(groups: Sequence[tuple[int, ...]], needs: Sequence[tuple[int, Iterable[int]]]) -> list[tuple[int, ...]]:
    """Groups, in the order of `needs`: a tangent, those whose history begins there; raises NotApart: a cycle."""
    waiting, done = list(groups), list[tuple[int, ...]]()
    while waiting:
        open_ = {t for group in waiting for t in group}
        ready = [g for g in waiting if not any(t in open_ and not set(g).isdisjoint(by) for t, by in needs)]
        if not ready:
            raise NotApart
        done += ready
        waiting = [g for g in waiting if g not in ready]
    return done


def keep_histories(graph: fx.Graph) -> None:
    """Have the nodes tell in copies of the graph too, whose values have no history, whether they have one."""
    for node in graph.nodes:
        node.meta["history"] = has_history(node)


def has_history(node: fx.Node) -> bool:
    """Whether what a node gives has gradients."""
    if "history" in node.meta:
        return bool(node.meta["history"])
    return node.op.startswith("call") and any(t.requires_grad for t in tensors_in(node.meta.get("val")))


def memory_of(node: fx.Node) -> list[int]:
    """What tells the memory of a node's tensors."""
    tensors = list(tensors_in(node.meta.get("val")))
    return [t.untyped_storage()._cdata for t in tensors if t.layout == torch.strided]
