"""Finds a pattern in an FX graph: by backtracking, through views and casts, with the reason where it fails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from firebrick.extend.pattern import Capture, Literal, Operand, Pattern, Ref
from firebrick.ir.graph.calls import CASTS, RESHAPES, VIEWS, Call, call_of, value_of


class GraphIndex:
    """The calls of a graph in normal form, and nodes by op name. Made once a pass, renewed after a change."""

    def __init__(self, graph: fx.Graph) -> None:
        self.calls: dict[fx.Node, Call] = {}
        self.by_name: dict[str, list[fx.Node]] = defaultdict(list)
        for node in graph.nodes:
            self.add(node)

    def add(self, node: fx.Node) -> None:
        """Index one more node."""
        call = call_of(node)
        if call is not None:
            self.calls[node] = call
            self.by_name[call.name].append(node)


@dataclass(frozen=True, slots=True)
class Match:
    """A place where the pattern is.

    nodes: pattern node index -> graph node.
    captures: parameter name -> graph node or number.
    outputs: graph nodes of the pattern's outputs.
    sunk: views and casts that stood inside the pattern and must be applied to the replacement's output.
    passed: every view and cast that stood inside, also those that cancel.
    """

    nodes: dict[int, fx.Node]
    captures: dict[str, Any]
    outputs: tuple[fx.Node, ...]
    sunk: tuple[fx.Node, ...]
    passed: tuple[fx.Node, ...]

    @property
    def inner(self) -> set[fx.Node]:
        """All graph nodes that the match covers."""
        return {*self.nodes.values(), *self.passed}


@dataclass(frozen=True, slots=True)
class _State:
    nodes: dict[int, fx.Node]
    captures: dict[str, Any]
    sunk: tuple[fx.Node, ...] = ()
    passed: tuple[fx.Node, ...] = ()


class Matcher:
    """Matches one pattern against one graph."""

    def __init__(self, pattern: Pattern, index: GraphIndex, *, through: frozenset[str] = frozenset({"views"})) -> None:
        self.pattern, self.index, self.through = pattern, index, through
        self._depth, self._reason = -1, ""
        self._steps = 0

    def anchors(self) -> list[fx.Node]:
        """Graph nodes that could be the pattern's first output."""
        return list(self.index.by_name.get(self.pattern.nodes[self.pattern.outputs[0]].name, ()))

    def match(self, anchor: fx.Node) -> Match | str:
        """The first match with `anchor` as the first output, or the reason why there is none."""
        self._depth, self._reason, self._steps = -1, "", 0
        for state in self._outputs(0, anchor, _State({}, {})):
            missing = [c.name for c in self.pattern.captures if c.name not in state.captures]
            if missing:
                self._fail(state, anchor, f"parameter {missing[0]} is not part of the pattern")
                continue
            outputs = tuple(state.nodes[i] for i in self.pattern.outputs)
            return Match(state.nodes, state.captures, outputs, state.sunk, state.passed)
        return self._reason or "no match"

    def _outputs(self, k: int, anchor: fx.Node | None, state: _State) -> Iterator[_State]:
        """Match output `k` and those after it."""
        if k == len(self.pattern.outputs):
            yield state
            return
        index = self.pattern.outputs[k]
        if index in state.nodes:
            yield from self._outputs(k + 1, None, state)
            return
        for candidate in [anchor] if anchor is not None else self._candidates(index, state):
            for state_after in self._node(index, candidate, state):
                yield from self._outputs(k + 1, None, state_after)

    def _candidates(self, index: int, state: _State) -> list[fx.Node]:
        """Nodes that can be a further output: near what is matched already where the pattern says so."""
        template = self.pattern.nodes[index]
        matched = set(state.nodes.values())
        nodes: list[fx.Node] = []
        for _, operand in template.arguments:
            bound = None
            if isinstance(operand, Capture):
                bound = state.captures.get(operand.name)
            elif isinstance(operand, Ref):
                bound = state.nodes.get(operand.index)
            if isinstance(bound, fx.Node):
                nodes = [n for n in bound.users if n in self.index.calls and self.index.calls[n].name == template.name]
                break
        else:
            nodes = self.index.by_name.get(template.name, [])
        return sorted((n for n in nodes if n not in matched), key=lambda n: n._sort_key)

    def _node(self, index: int, node: Any, state: _State) -> Iterator[_State]:
        """Match pattern node `index` with `node`."""
        bound = state.nodes.get(index)
        if bound is not None:
            if bound is node:
                yield state
            else:
                self._fail(state, node, "a value that the pattern uses twice is two values here")
            return
        template = self.pattern.nodes[index]
        call = self.index.calls.get(node) if isinstance(node, fx.Node) else None
        self._steps += 1
        if self._steps > 10_000:  # the pattern has too many equal ways; giving up is right, only slower code
            self._fail(state, node, "gave up after 10,000 steps")
            return
        if call is None or call.name != template.name:
            actual = "a constant" if not isinstance(node, fx.Node) else (call.name if call else node.op)
            self._fail(state, node, f"{template.name} expected, {actual} found")
            return
        if node in state.nodes.values():
            self._fail(state, node, "one node can't be two of the pattern")
            return
        here = _State({**state.nodes, index: node}, state.captures, state.sunk, state.passed)
        expected = dict(template.arguments)
        yield from self._arguments(node, list(expected.items()), call, here)
        if template.commutes and "self" in call.arguments and "other" in call.arguments:
            swapped = {**call.arguments, "self": call.arguments["other"], "other": call.arguments["self"]}
            yield from self._arguments(node, list(expected.items()), Call(call.name, swapped), here)

    def _arguments(
        self, node: fx.Node, expected: list[tuple[str, Operand]], call: Call, state: _State
    ) -> Iterator[_State]:
        names = {name for name, _ in expected}
        if names != set(call.arguments):
            odd = sorted(names ^ set(call.arguments))
            self._fail(state, node, f"{call.name} has other arguments ({', '.join(odd)})")
            return
        yield from self._operands(node, expected, [call.arguments[name] for name, _ in expected], state)

    def _operands(
        self, node: fx.Node, expected: list[tuple[str, Operand]], values: list[Any], state: _State
    ) -> Iterator[_State]:
        if not expected:
            yield state
            return
        name, operand = expected[0]
        for state_after in self._operand(node, name, operand, values[0], state):
            yield from self._operands(node, expected[1:], values[1:], state_after)

    def _operand(self, node: fx.Node, name: str, operand: Operand, value: Any, state: _State) -> Iterator[_State]:
        if isinstance(operand, tuple):
            if isinstance(value, (tuple, list)) and len(value) == len(operand):
                yield from self._operands(node, [(name, o) for o in operand], list(value), state)
            elif not (isinstance(value, (tuple, list)) and all(isinstance(o, Literal) and o.size for o in operand)):
                self._fail(state, node, f"argument {name} has another length")
            else:
                yield state
        elif isinstance(operand, Literal):
            if operand.size or _same(operand.value, value, name, node):
                yield state
            else:
                self._fail(state, node, f"argument {name} is {value}, not {operand.value}")
        elif isinstance(operand, Capture):
            yield from self._capture(node, name, operand, value, state)
        else:
            yield from self._node(operand.index, value, state)
            yield from self._through(operand.index, value, state)

    def _capture(self, node: fx.Node, name: str, operand: Capture, value: Any, state: _State) -> Iterator[_State]:
        if operand.scalar:
            if isinstance(value, fx.Node) or not isinstance(value, (int, float, bool, complex)):
                self._fail(state, node, f"argument {name} is no constant number ({operand.name})")
                return
        elif not isinstance(value, fx.Node) or not _may_be_tensor(value):
            self._fail(state, node, f"argument {name} is no tensor ({operand.name})")
            return
        if operand.name in state.captures:
            captured = state.captures[operand.name]
            if not (
                captured is value if isinstance(value, fx.Node) else type(captured) is type(value) and captured == value
            ):
                self._fail(state, node, f"{operand.name} would be two different values")
                return
            yield state
            return
        yield _State(state.nodes, {**state.captures, operand.name: value}, state.sunk, state.passed)

    def _through(self, index: int, value: Any, state: _State) -> Iterator[_State]:
        """Look past views that cancel out, and past views and casts that can move behind the pattern's output."""
        chain: list[fx.Node] = []
        current = value
        while isinstance(current, fx.Node) and self._passable(current) and len(current.users) == 1:
            chain.append(current)
            current = self.index.calls[current].arguments["self"]
        if not chain:
            return
        expected = self.pattern.nodes[index].name
        for length in range(1, len(chain) + 1):
            below = self.index.calls[chain[length - 1]].arguments["self"]
            if not isinstance(below, fx.Node) or below not in self.index.calls:
                continue
            if self.index.calls[below].name != expected:
                continue
            skipped = tuple(chain[:length])
            if self._cancels(below, skipped):
                sunk = state.sunk
            elif self.pattern.nodes[index].sinks and index not in self.pattern.outputs:
                sunk = (*reversed(skipped), *state.sunk)
            else:
                self._fail(state, below, f"{skipped[0].name} stands between and changes the shape", telling=True)
                continue
            yield from self._node(index, below, _State(state.nodes, state.captures, sunk, (*state.passed, *skipped)))

    def _passable(self, node: fx.Node) -> bool:
        call = self.index.calls.get(node)
        if call is None or "self" not in call.arguments:
            return False
        others = [v for k, v in call.arguments.items() if k != "self"]
        if any(isinstance(v, fx.Node) for v in others):
            return False
        if call.name in VIEWS:
            return "views" in self.through
        return call.name in CASTS and "casts" in self.through and _keeps_floating(node, call.arguments["self"])

    def _cancels(self, start: fx.Node, chain: tuple[fx.Node, ...]) -> bool:
        first, last = value_of(start), value_of(chain[0])
        if not isinstance(first, torch.Tensor) or not isinstance(last, torch.Tensor):
            return False
        order_kept = all(self.index.calls[n].name in RESHAPES for n in chain)
        if any(self.index.calls[n].name == "expand" for n in chain):
            order_kept = order_kept and all(_numel(n) == first.numel() for n in chain)
        return order_kept and first.shape == last.shape and first.dtype == last.dtype

    def _fail(self, state: _State, node: Any, reason: str, *, telling: bool = False) -> None:
        if len(state.nodes) > self._depth or (telling and len(state.nodes) == self._depth):
            where = f"{node.name}: " if isinstance(node, fx.Node) else ""
            self._depth, self._reason = len(state.nodes), where + reason


def _keeps_floating(node: fx.Node, source: Any) -> bool:
    """Whether a cast goes from one floating type to another, so that pointwise ops may come before or after it."""
    values = (value_of(node), value_of(source))
    return all(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in values)


def _numel(node: fx.Node) -> Any:
    value = value_of(node)
    return value.numel() if isinstance(value, torch.Tensor) else None


def _may_be_tensor(node: fx.Node) -> bool:
    value = value_of(node)
    return value is None or isinstance(value, torch.Tensor)


def _same(expected: Any, value: Any, name: str, node: fx.Node) -> bool:
    if isinstance(value, fx.Node):
        return False
    if isinstance(expected, (tuple, list)) or isinstance(value, (tuple, list)):
        both = isinstance(expected, (tuple, list)) and isinstance(value, (tuple, list)) and len(expected) == len(value)
        return both and all(_same(a, b, name, node) for a, b in zip(expected, value, strict=True))
    if isinstance(expected, bool) != isinstance(value, bool):
        return False
    if isinstance(expected, (int, float)) and isinstance(value, (int, float)):
        if expected == value:
            return True
        rank = _rank(node)
        is_dim = name.startswith("dim") and isinstance(expected, int) and isinstance(value, int)
        return is_dim and rank > 0 and (expected - value) % rank == 0
    return type(expected) is type(value) and bool(expected == value)


def _rank(node: fx.Node) -> int:
    for argument in node.args:
        value = value_of(argument)
        if isinstance(value, torch.Tensor):
            return value.dim()
    return 0
