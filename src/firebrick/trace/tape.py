"""The tape: every ATen call that a trace makes, in order, cheap to append to and to drop from.

Records are turned into fx nodes once, at the end, and only those that some output needs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from firebrick.errors import LoweringError, UserLocation
from firebrick.ir.operators.collective_op import COLLECTIVE_OPS


class Record:
    """One value-producing call.

    op: an OpOverload, `operator.getitem`, or "placeholder" / "get_attr" with the name as only argument.
    val: FakeTensor, list of them, or a number.
    """

    __slots__ = ("args", "kwargs", "node", "op", "stack", "val")

    def __init__(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any, stack: tuple[UserLocation, ...]
    ) -> None:
        self.op, self.args, self.kwargs, self.val, self.stack = op, args, kwargs, val, stack
        self.node: fx.Node | None = None


def map_records(value: Any, fn: Callable[[Record], Any]) -> Any:
    """Apply `fn` to every `Record` inside nested tuples, lists and dicts."""
    if isinstance(value, Record):
        return fn(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)([map_records(v, fn) for v in value])
    if type(value) is dict:
        return {k: map_records(v, fn) for k, v in value.items()}
    return value


class Draws:
    """The random numbers of a function that a backward runs again: they are drawn once, and each run has the same."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.at = 0

    def next(self, op: Any) -> Record | None:
        """The record of the run before, None in the first."""
        self.at += 1
        if self.at > len(self.records):
            return None
        record = self.records[self.at - 1]
        if record.op is not op:
            raise LoweringError("a checkpoint draws other random numbers when it is computed again")
        return record


@cache
def _is_impure(op: Any) -> bool:
    if not isinstance(op, torch._ops.OpOverload):
        return False
    acts = op._schema.is_mutable or not op._schema.returns  # such as `_assert_async`
    return torch.Tag.nondeterministic_seeded in op.tags or acts


class Tape:
    """Records in the order that they were made."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.stack: tuple[UserLocation, ...] = ()
        self.draws: Draws | None = None
        self.in_backward = False

    @contextmanager
    def drawing(self, draws: Draws) -> Iterator[None]:
        """In the block, random ops are those of the run before."""
        before, self.draws, draws.at = self.draws, draws, 0
        try:
            yield
        finally:
            self.draws = before

    def add(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], val: Any, draws: bool = True) -> Record:
        """Append a call and return its record; without `draws` its tag of random numbers does not count."""
        drawn = draws and isinstance(op, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in op.tags
        if drawn and self.draws is not None and (earlier := self.draws.next(op)) is not None:
            return earlier
        if drawn and self.in_backward and op not in COLLECTIVE_OPS.values():
            raise LoweringError("a backward draws random numbers")
        record = Record(op, args, kwargs, val, self.stack)
        self.records.append(record)
        if drawn and self.draws is not None:
            self.draws.records.append(record)
        return record

    def _live(self, outputs: Iterable[Any], attributes: Container[str]) -> set[int]:
        live = {id(r) for r in self.records if r.op == "get_attr" and r.args[0] in attributes}

        def mark(record: Record) -> None:
            live.add(id(record))

        for value in outputs:
            map_records(value, mark)
        for record in reversed(self.records):
            if id(record) in live or _is_impure(record.op):
                live.add(id(record))
                map_records(record.args, mark)
                if record.kwargs:
                    map_records(record.kwargs, mark)
        return live

    def to_graph(self, inputs: Iterable[Record], outputs: list[Any], attributes: Container[str] = ()) -> fx.Graph:
        """Make an fx graph of the records that `outputs` need; `inputs` and `attributes` are in it, used or not."""
        graph = fx.Graph()
        live = self._live(outputs, attributes)

        def node_of(record: Record) -> fx.Node:
            if record.node is None:
                raise AssertionError(f"{record.op} is used before it is made")
            return record.node

        for record in (*inputs, *(r for r in self.records if id(r) in live and r.op != "placeholder")):
            if isinstance(record.op, str):
                node = graph.create_node(record.op, record.args[0], name=record.args[0])
            else:
                # Arguments come behind: `create_node` searches them for symbolic sizes, to warn of those.
                node = graph.create_node("call_function", record.op, name=_node_name(record))
                node.args = map_records(record.args, node_of)
                node.kwargs = map_records(record.kwargs, node_of) if record.kwargs else {}
            node.meta["val"], node.meta["stack"] = record.val, record.stack
            record.node = node
        graph.output(tuple(map_records(list(outputs), node_of)))
        return graph


def _node_name(record: Record) -> str:
    name: str = "getitem" if record.op is operator.getitem else record.op._opname
    return name.lstrip("_") or "op"


def module_of(graph: fx.Graph, constants: dict[str, torch.Tensor]) -> tuple[fx.GraphModule, dict[str, torch.Tensor]]:
    """Wrap `graph` in a module, whose source is made when it is first called, with those of `constants` it reads."""
    used = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    read = {name: t for name, t in constants.items() if name in used}
    return _LazyGraphModule(read, graph), read
