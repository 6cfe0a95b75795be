"""Equal stretches of a captured graph: the layers of a model, of which a few are compiled for all.

A stretch is a run of consecutive calls that the next stretch repeats: the same calls of the same shapes, on the
results of the same calls one stretch later, on the same values from before, or on constants of its own. `shortened`
leaves out all stretches but the first three and the last. What the third became, with its own results and constants
in place of the second's, is what every stretch left out would have become (`firebrick.fuse.unroll`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from firebrick.errors import LoweringError
from firebrick.runtime.bits import bits_of

_FEWEST_CALLS = 4
"""Calls that make a stretch worth it."""

_FEWEST_STRETCHES = 6


class NotAlike(LoweringError):
    """The second and third stretch became different things; the whole graph is to be compiled."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Equal stretches of a graph, in order.

    numbers: places of each stretch's calls in the graph.
    own: names of the constants that each stretch alone uses, in the order of their use.
    backward: of a backward graph, whose stretches run from the last to the first.
    inputs, outputs: stretch and key of what a backward takes and of what either returns; None where all have it.
    """

    numbers: tuple[tuple[int, ...], ...]
    own: tuple[tuple[str, ...], ...]
    backward: bool = False
    inputs: tuple[tuple[int, Any] | None, ...] = ()
    outputs: tuple[tuple[int, Any] | None, ...] = ()

    def left_out(self) -> range:
        """The stretches that a shortened graph lacks."""
        return range(3, len(self.numbers) - 1)

    def label(self, key: Sequence[Any]) -> tuple[int, Any] | None:
        """The stretch of a value, and what corresponding ones of all stretches have in common; None if it has none.

        key: `("const", name)`, or `("call", number, which of the values that were made of that node)`.
        """
        for k, (numbers, names) in enumerate(zip(self.numbers, self.own, strict=True)):
            if key[0] == "const" and key[1] in names:
                return k, names.index(key[1])
            if key[0] == "call" and key[1] in numbers:
                return k, (numbers.index(key[1]), key[2])
        return None


def find_repeat(graph: fx.Graph) -> Repeat | None:
    """The longest repetition of a torch-level graph, if leaving out some of it is worth it."""
    nodes = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
    place = {node: i for i, node in enumerate(nodes)}
    number_of: dict[Any, int] = {}
    kinds = [number_of.setdefault(_kind(node), len(number_of)) for node in nodes]
    best: tuple[int, int, int] = (0, 0, 0)  # calls covered, start, calls of a stretch
    for period in _periods(kinds):
        length, start = _longest_run(nodes, kinds, place, period)
        if length // period + 1 >= _FEWEST_STRETCHES and length > best[0]:
            best = length, start, period
    length, start, period = best
    if not length:
        return None
    stretches = [nodes[start + k * period : start + (k + 1) * period] for k in range(length // period + 1)]
    own = _own_constants(stretches)
    if own is None or not _can_leave_out(stretches):
        return None
    numbers = {node: number for number, node in enumerate(graph.nodes)}
    return Repeat(tuple([tuple([numbers[node] for node in stretch]) for stretch in stretches]), own)


def shortened(gm: fx.GraphModule, repeat: Repeat) -> fx.GraphModule:
    """A copy of the graph without the stretches that are left out."""
    nodes = list(gm.graph.nodes)
    last, before = repeat.numbers[-1], repeat.numbers[-2]
    left_out = {number for stretch in repeat.numbers[3:-1] for number in stretch}
    constants = {name for names in repeat.own[3:-1] for name in names}
    copy_of: dict[fx.Node, fx.Node] = {}
    stands_for = {nodes[old]: nodes[new] for old, new in zip(before, repeat.numbers[2], strict=True)}
    graph = fx.Graph(tracer_cls=gm.graph._tracer_cls)
    for number, node in enumerate(nodes):
        if number in left_out or (node.op == "get_attr" and node.target in constants):
            continue
        swap = stands_for if number >= last[0] else {}
        copied = graph.node_copy(node, lambda n, swap=swap: copy_of[swap.get(n, n)])  # type: ignore[misc]
        copy_of[node] = copied
    module = _LazyGraphModule(gm, graph)
    module.meta.update(gm.meta)
    return module


def _kind(node: fx.Node) -> Any:
    """What equal calls have in common, but for what they are called on."""
    return (node.op, node.target, _kind_of(node.args), _kind_of(node.kwargs), _shape(node.meta.get("val")))


def _kind_of(arg: Any) -> Any:
    if isinstance(arg, fx.Node):
        if arg.op == "get_attr":
            return ("constant", _shape(arg.meta.get("val")))
        return arg.name if arg.op == "placeholder" else "node"
    if isinstance(arg, (tuple, list)):
        return (type(arg).__name__, *[_kind_of(item) for item in arg])
    if isinstance(arg, dict):
        return tuple([(key, _kind_of(item)) for key, item in arg.items()])
    if isinstance(arg, slice):
        return ("slice", _kind_of(arg.start), _kind_of(arg.stop), _kind_of(arg.step))
    return (type(arg).__name__, repr(arg))


def _shape(val: Any) -> Any:
    if isinstance(val, torch.Tensor):
        sizes = repr((*val.shape, *val.stride()))  # symbols can't be hashed
        return (sizes, val.dim(), val.dtype, val.device, val.requires_grad, *bits_of(val))
    return tuple([_shape(item) for item in val]) if isinstance(val, (tuple, list)) else repr(val)


def _periods(kinds: list[int]) -> list[int]:
    """Distances at which calls come again most often."""
    last: dict[int, int] = {}
    gaps: Counter[int] = Counter()
    for i, kind in enumerate(kinds):
        if kind in last:
            gaps[i - last[kind]] += 1
        last[kind] = i
    return [gap for gap, _ in gaps.most_common(8) if gap >= _FEWEST_CALLS]


def _longest_run(nodes: list[fx.Node], kinds: list[int], place: dict[fx.Node, int], period: int) -> tuple[int, int]:
    """Length and start of the longest run of calls that are each repeated `period` calls later."""
    best = (0, 0)
    start = -1
    for i in range(len(nodes) - period + 1):
        same = i + period < len(nodes) and kinds[i] == kinds[i + period]
        same = same and _repeats(nodes[i], nodes[i + period], place, period)
        if same and start < 0:
            start = i
        elif not same and start >= 0:
            best = max(best, (i - start, start), key=lambda run: run[0])
            start = -1
    return best


def _repeats(node: fx.Node, later: fx.Node, place: dict[fx.Node, int], period: int) -> bool:
    """Whether a call is on the same values as an earlier one, or on those of the calls one period later."""
    for one, two in zip(_used(node), _used(later), strict=True):
        if one is two or (one.op == "get_attr" and two.op == "get_attr"):
            continue
        if one not in place or two not in place or place[two] != place[one] + period:
            return False
    return True


def _used(node: fx.Node) -> list[fx.Node]:
    """The nodes among a call's arguments, each as often as it stands there."""
    used: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), used.append)
    return used


def _own_constants(stretches: list[list[fx.Node]]) -> tuple[tuple[str, ...], ...] | None:
    """Constants that only one stretch uses, aligned; None if they don't correspond."""
    own: list[list[fx.Node]] = [[] for _ in stretches]
    for calls in zip(*stretches, strict=True):
        for constants in zip(*[[n for n in _used(call) if n.op == "get_attr"] for call in calls], strict=True):
            if all(n is constants[0] for n in constants):
                continue
            places = [own[k].index(n) if n in own[k] else -1 for k, n in enumerate(constants)]
            if any(p != places[0] for p in places) or len(set(constants)) != len(constants):
                return None
            if places[0] < 0:
                for names, constant in zip(own, constants, strict=True):
                    names.append(constant)
    for names, stretch in zip(own, stretches, strict=True):
        inside = set(stretch)
        if any(user not in inside for constant in names for user in constant.users):
            return None
    return tuple([tuple([str(constant.target) for constant in names]) for names in own])


def _can_leave_out(stretches: list[list[fx.Node]]) -> bool:
    """Whether nothing but the next stretch uses what a stretch that is left out makes."""
    stretch_of = {node: k for k, stretch in enumerate(stretches) for node in stretch}
    last = len(stretches) - 1
    for node, k in stretch_of.items():
        if k == 0:
            continue
        for user in node.users:
            by = stretch_of.get(user, last + 1)
            if by - k > 1 and not (k == last or (k == last - 1 and by == last + 1)):
                return False
    return True
