"""What a backward graph gets from its forward: which values are saved, and which it computes again.

A partition is a function of a `JointGraph` that returns the forward nodes to save. `save_needed` saves what the
backward reads, as eager PyTorch does; `min_cut` looks for fewer bytes, where cheap ops lead from them to what the
backward reads.
"""

from __future__ import annotations

import importlib
import operator
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from firebrick.fakes.node_values import acts
from firebrick.ir.graph.calls import shows_memory
from firebrick.trace.decompositions import named
from firebrick.trace.selective import MUST_SAVE

if TYPE_CHECKING:
    from firebrick.trace.joint import JointGraph

_CHEAP = named(
    "clone.default _to_copy.default full.default full_like.default zeros_like.default ones_like.default "
    "arange.start_step arange.start arange.default scalar_tensor.default constant_pad_nd.default"
)
"""Ops that are computed again rather than kept, besides pointwise ops and views."""


def is_random(node: fx.Node) -> bool:
    """Whether computing the node twice gives two values."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def _is_cheap(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or is_random(node):
        return False
    return target in _CHEAP or target.is_view or torch.Tag.pointwise in target.tags


def base_of(node: fx.Node) -> fx.Node:
    """Follow views to the node whose memory they show."""
    while shows_memory(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def bytes_of(node: fx.Node) -> int:
    """Memory of a node's value, in this call if sizes vary; 0 for what is no tensor."""
    val = node.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return 0
    count: Any = val.numel()
    return int(count.node.hint if isinstance(count, torch.SymInt) else count) * val.element_size()


class Phases:
    """Which nodes of a joint graph belong to the forward: what its results need, and what random ops need."""

    def __init__(self, joint: JointGraph) -> None:
        self.joint = joint
        nodes = list(joint.gm.graph.nodes)
        tangents = set(joint.placeholders()[1])
        self.results = [r for r in joint.results()[0] if isinstance(r, fx.Node)]
        after = set(tangents)
        for node in nodes:
            if not after.isdisjoint(node.all_input_nodes):
                after.add(node)
        fixed = "placeholder", "get_attr"
        stays = [n for n in nodes if acts(n) or is_random(n) or n.op in fixed or MUST_SAVE in n.meta]
        seeds = [n for n in stays if n not in after]
        self.forward = ancestors([*self.results, *seeds])
        for node in nodes:
            if node.target is operator.getitem and node.args[0] in self.forward:
                self.forward.add(node)
        gradients = (n for n in joint.results()[1] if isinstance(n, fx.Node))
        self.backward = [n for n in nodes if n not in self.forward and n not in tangents and n.op != "output"]
        used = [i for n in self.backward for i in n.all_input_nodes]
        self.needed = dict.fromkeys(n for n in (*used, *gradients) if n in self.forward)


def ancestors(nodes: Iterable[fx.Node], stops: Collection[fx.Node] = ()) -> set[fx.Node]:
    """Return the nodes and all that they need, as far as `stops`, and these."""
    reached = {*stops}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += node.all_input_nodes
    return reached


def save_needed(joint: JointGraph) -> list[fx.Node]:
    """Save what the backward reads: nothing is computed twice but views."""
    return list(dict.fromkeys(base_of(n) for n in Phases(joint).needed))


def min_cut(joint: JointGraph, budget: float = 1.0) -> list[fx.Node]:
    """Save the fewest bytes from which cheap ops alone compute what the backward reads.

    Matmuls, convolutions, reductions and library kernels are computed twice only where the `budget` is below 1, layer
    norms where their input is there, random ops never. Of equal cuts the one nearest to the backward is taken, which
    computes least again. What the caller sees is saved where the backward reads it itself, and nowhere else: the caller
    may write it, which is then an error as in eager mode.

    budget: 1 saves all that such a cut has, 0 what is left where everything may be computed again; between them the
    bytes are at most that share of the difference more. Computing again has a price for its work then, in bytes; as it
    rises the cuts save more, and the highest that fits is taken.
    """
    phases = Phases(joint)
    if budget >= 1:
        return _cut(joint, phases, None)[0]
    nodes = [n for n in joint.gm.graph.nodes if n in phases.forward]
    # equal layers have equal work: they are given up one by one, the first ones last
    works = {n: _work(n) * (2 - i / len(nodes)) for i, n in enumerate(nodes)}
    most, least = _cut(joint, phases, works, _STEPS)[1], _cut(joint, phases, works, -_STEPS)[1]
    limit, prices = least + budget * (most - least), range(1 - _STEPS, _STEPS)
    step = bisect_left(prices, True, key=lambda price: _cut(joint, phases, works, price)[1] > limit) - _STEPS
    return _cut(joint, phases, works, step)[0]


def _is_norm_again(node: fx.Node, read: set[fx.Node], visible: set[fx.Node]) -> bool:
    """Whether this is what a layer norm gave whose own gradient has the input, so that a pass over that gives it again.
    What residuals read too stays: it lies between layers, and each would begin with the norm of the one before."""
    while not any(_is_cheap(user) and len(user.all_input_nodes) > 1 for user in node.users):
        if not _is_cheap(node) or len(node.all_input_nodes) != 1:
            norm: Any = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else node
            is_norm = norm.target is torch.ops.aten.native_layer_norm.default and MUST_SAVE not in node.meta
            return is_norm and base_of(norm.args[0]) in read and node not in visible
        node = node.all_input_nodes[0]
    return False


_STEPS = 256
"""Prices of work are powers of the eighth root of two, of this exponent at most: no work costs as much as any bytes."""


def _work(node: fx.Node) -> float:
    """What computing a node takes: arithmetic of matmuls, convolutions and attention, else elements."""
    registry = importlib.import_module("torch.utils.flop_counter").flop_registry  # it imports Triton: 0.8 s
    count = registry.get(getattr(node.target, "overloadpacket", None))
    elements = sum(bytes_of(n) for n in (node, *node.all_input_nodes)) + 1
    if count is None:
        return elements
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return max(elements, count(*args, **kwargs, out_val=node.meta["val"]))


def _cut(
    joint: JointGraph, phases: Phases, works: Mapping[fx.Node, float] | None, step: int = 0
) -> tuple[list[fx.Node], int]:
    """What is saved, and its bytes; `works`: of what may be computed again, at the price of this step."""
    written, visible = set(joint.mutated), {base_of(r) for r in phases.results}  # the caller sees and may write it
    network, entries = Network(), {}
    exits: dict[fx.Node, int] = {}
    read = {base_of(n) for n in phases.needed}
    wanted = ancestors(phases.needed)
    for node in joint.gm.graph.nodes:
        if node not in wanted:
            continue
        entries[node], exits[node] = network.node(), network.node()
        capacity = INFINITE
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
        if is_tensor and not shows_memory(node) and (node not in visible or node in read):
            capacity = 0 if node in visible and node.op == "call_function" else _cost(node, written)
            if works is not None and node.op == "placeholder" and node.name not in written:
                capacity = 1
        must_save = MUST_SAVE in node.meta and node.op == "call_function"
        network.edge(entries[node], exits[node], 0 if must_save else capacity)
        if must_save:
            network.edge(0, entries[node], INFINITE)
        elif node.op in ("placeholder", "get_attr") or not (_is_cheap(node) or node.target is operator.getitem):
            price = INFINITE
            if works is not None and node in works and _may_run_again(node):
                price = int(works[node] * 2 ** (step / 8))
            network.edge(0, entries[node], price)
        for source in set(node.all_input_nodes):
            network.edge(exits[source], entries[node], INFINITE)
        if node in phases.needed:
            network.edge(exits[node], 1, INFINITE)
    reached = network.sink_side()
    saved = [n for n in entries if exits[n] in reached and entries[n] not in reached]
    saved = [n for n in saved if MUST_SAVE in n.meta or not _is_norm_again(n, read, visible)]
    return saved, sum(bytes_of(n) for n in saved if n.op == "call_function")


def _may_run_again(node: fx.Node) -> bool:
    """Whether computing the node twice does nothing but take time; of others' operators that is not sure."""
    is_aten = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == "aten"
    return is_aten and not is_random(node) and not acts(node)


def _cost(node: fx.Node, written: set[str]) -> int:
    """Bytes, less for what is alive anyway: constants cost nothing, inputs half."""
    size = bytes_of(node)
    if node.name in written or node.target in written:
        return size + 1
    return 1 if node.op == "get_attr" else size // 2 + 1 if node.op == "placeholder" else size + 1


INFINITE = 1 << 62


class Network:
    """A directed graph with capacities; nodes are numbers, 0 the source and 1 the sink."""

    def __init__(self) -> None:
        self._to: list[int] = []
        self._room: list[int] = []  # edge i's reverse is edge i ^ 1
        self._out: list[list[int]] = [[], []]

    def node(self) -> int:
        """Add a node."""
        self._out.append([])
        return len(self._out) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge."""
        for a, b, room in ((start, end, capacity), (end, start, 0)):
            self._out[a].append(len(self._to))
            self._to.append(b)
            self._room.append(room)

    def sink_side(self) -> set[int]:
        """Return the nodes from which the sink can still be reached when the flow is at its maximum."""
        while (depth := self._depths())[1] >= 0:
            self._block(depth)
        reached, queue = {1}, deque([1])
        while queue:
            for edge in self._out[queue.popleft()]:
                start = self._to[edge]
                if self._room[edge ^ 1] and start not in reached:
                    reached.add(start)
                    queue.append(start)
        return reached

    def _depths(self) -> list[int]:
        depth = [-1] * len(self._out)
        depth[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for edge in self._out[node]:
                end = self._to[edge]
                if self._room[edge] and depth[end] < 0:
                    depth[end] = depth[node] + 1
                    queue.append(end)
        return depth

    def _block(self, depth: list[int]) -> None:
        """Push flow along shortest paths until each has a full edge."""
        tried = [0] * len(self._out)
        path: list[int] = []
        node = 0
        while True:
            if node == 1:
                amount = min(self._room[e] for e in path)
                for e in path:
                    self._room[e] -= amount
                    self._room[e ^ 1] += amount
                first = next(i for i, e in enumerate(path) if not self._room[e])
                node = self._to[path[first] ^ 1]
                del path[first:]
                continue
            edges = self._out[node]
            while tried[node] < len(edges):
                edge = edges[tried[node]]
                if self._room[edge] and depth[self._to[edge]] == depth[node] + 1:
                    path.append(edge)
                    node = self._to[edge]
                    break
                tried[node] += 1
            else:
                if not path:
                    return
                node = self._to[path.pop() ^ 1]
                tried[node] += 1
