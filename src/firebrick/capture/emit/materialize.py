"""From values back to bytecode: each object is loaded once, from its source, the graph or made anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import CodeType
from typing import Any

from firebrick.capture.emit.prelude import Made
from firebrick.capture.emit.writer import Emitter
from firebrick.capture.graph import GraphBuilder
from firebrick.capture.guards.sources import Local, Source
from firebrick.capture.values.base import NULL, LazyValue, Value
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.function import CallableValue, CellValue
from firebrick.capture.values.tensor import TensorValue


class ValueEmitter(Emitter):
    """An emitter that loads values.

    Args:
        code: the frame's own code.
        parent: the emitter that this one's instructions go into.
        graph: gives a place among the graph's results to each tensor that is loaded.
        own_cells: cell variables of the frame, which exist when the code runs.
    """

    def __init__(self, code: CodeType, parent: Emitter | None, graph: GraphBuilder, own_cells: dict[int, str]) -> None:
        super().__init__(code, parent)
        self.graph, self.own_cells = graph, own_cells
        self._temps_of: dict[Any, str] = {}  # by value, or by the source of one that was not looked at
        self.output_temps: dict[int, str] = {}
        self.used_cells: set[str] = set()
        self._made_temps: dict[int, str] = {} if not isinstance(parent, ValueEmitter) else parent._made_temps

    def load(self, value: Value) -> None:
        """Push the object that a value stands for."""
        if isinstance(value, LazyValue):
            if value._real is None:
                self._load_cached(value.source, value)
                return
            value = value._real
        if isinstance(value, ConstantValue) and isinstance(value.source, Local):
            self.load_source(value.source)  # an equal object may be another one
            return
        if value is NULL or isinstance(value, (ConstantValue, CallableValue)):
            value.reconstruct(self)
            return
        if isinstance(value, CellValue) and id(value) in self.own_cells:
            name = self.own_cells[id(value)]
            self.used_cells.add(name)
            self.load_closure(name)
            return
        self._load_cached(value, value)

    def load_const(self, value: object) -> None:
        """Push an object, or what captured code made and it stands in for."""
        new_object = self.graph.new_objects.get(id(value))
        if new_object is None:
            super().load_const(value)
        else:
            self.load(new_object)

    def _load_cached(self, key: Any, value: Value) -> None:
        temp = self._temps_of.get(key)
        if temp is not None:
            self.load_fast(temp)
            return
        if value.source is not None:
            self.load_source(value.source)
        else:
            value.reconstruct(self)
            if isinstance(value, TensorValue):
                return
        if self._temps_of.get(key) is None:
            self.dup()
            self._temps_of[key] = self.store_temp()

    def remember(self, value: Value) -> None:
        """Keep the object on top of the stack as what `value` is, from here on."""
        self.dup()
        self._temps_of[value] = self.store_temp()

    def load_graph_output(self, value: TensorValue) -> None:
        """Push a result of the graph."""
        index = self.graph.output(value)
        if index not in self.output_temps:
            self.output_temps[index] = self.new_temp()
        self.load_fast(self.output_temps[index])

    def made_temp(self, index: int) -> str:
        """Where the result of a call that is made before the graph lies."""
        if index not in self._made_temps:
            self._made_temps[index] = self.new_temp()
        return self._made_temps[index]

    def load_part(self, part: object) -> None:
        """Push a value, what a source names or a call before the graph has given, or a constant."""
        if isinstance(part, Value):
            self.load(part)
        elif isinstance(part, Source):
            self.load_source(part)
        elif isinstance(part, Made):
            self.load_fast(self.made_temp(part.index))
        else:
            self.load_const(part)

    def load_call(
        self, function: object, *args: object, temps: Sequence[str] = (), keywords: Sequence[str] = ()
    ) -> None:
        """Push what a function gives for arguments that are values or constants, then temporaries."""
        self.load_callable(function)
        for arg in args:
            self.load_part(arg)
        for temp in temps:
            self.load_fast(temp)
        self.call(len(args) + len(temps) - len(keywords), keywords)

    def run_call(
        self, function: object, *args: object, temps: Sequence[str] = (), keywords: Sequence[str] = ()
    ) -> None:
        """Make such a call and drop the result."""
        self.load_call(function, *args, temps=temps, keywords=keywords)
        self.pop()

    def load_tuple(self, items: Sequence[Value]) -> None:
        """Push a new tuple of values."""
        for item in items:
            self.load(item)
        self.build_tuple(len(items))

    def load_map(self, entries: Collection[tuple[Value, Value]]) -> None:
        """Push a new dict of keys and items."""
        for key, item in entries:
            self.load(key)
            self.load(item)
        self.build_map(len(entries))

    def set_attributes(self, attributes: Mapping[str, Value]) -> None:
        """Give attributes to the object on top, which stays there."""
        for name, item in attributes.items():
            self.dup()
            self.load(item)
            self.swap(2)
            self.store_attr(name)

    def load_to_temp(self, value: Value | list[Value]) -> str:
        """Load a value, or a tuple of values, into a new temporary."""
        if isinstance(value, list):
            self.load_tuple(value)
        else:
            self.load(value)
        return self.store_temp()

    def refilling(self, value: Value, method: str, items: list[Value]) -> Callable[[], None]:
        """Load items; the function returned makes them all that a container holds."""
        temp = self.load_to_temp(items)

        def store() -> None:
            self.call_method_on(value, "clear")
            self.call_method_on(value, method, temp)

        return store

    def call_method_on(
        self, value: Value, name: str, temp: str | None = None, *, of: type | None = None, keep: bool = False
    ) -> None:
        """Emit `value.name(temp)`, or `of.name(value, temp)`; the result is dropped unless `keep`."""
        if of is not None:
            self.load_callable(getattr(of, name))
            self.load(value)
        else:
            self.begin_call()
            self.load(value)
            self.load_attr(name)
            self.ready_call()
        if temp is not None:
            self.load_fast(temp)
        self.call((temp is not None) + (of is not None))
        if not keep:
            self.pop()
