"""Tuples, lists, named tuples, torch.Size, slices and deques: ordered holders of values."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NoReturn

import torch

from firebrick.capture.values.base import Args, BuiltinValue, Interpreter, Kwargs, Source, Value, ValueEmitter
from firebrick.capture.values.constant import NONE, ConstantValue

Method = Callable[[Interpreter, Any, Args, Kwargs], Value]


class SequenceValue(BuiltinValue):
    """What tuples and lists share."""

    __slots__ = ("items",)
    held = ("items",)

    def __init__(self, items: list[Value], source: Source | None = None) -> None:
        self.source, self.items = source, items

    def as_argument(self) -> Any:
        """A tuple or list of graph arguments."""
        return self.build([item.realize().as_argument() for item in self.items])

    def build(self, items: list[Any]) -> Any:
        """A host object of this kind over `items`."""
        raise NotImplementedError

    def length(self, interp: Interpreter) -> int:
        """Number of items."""
        return len(self.items)

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """Items in order; items appended while iterating are seen."""
        index = 0
        while index < len(self.items):
            yield self.items[index]
            index += 1

    def get_item(self, interp: Interpreter, key: Value) -> Value:
        """An item or, by slice, a new sequence."""
        key = key.realize()
        place = self.place(interp, key)
        if isinstance(place, slice):
            return self.copy_with(self.items[place])
        try:
            return self.items[place]
        except IndexError as error:
            text = str(error).replace("'int'", repr(key.python_type().__name__))
            interp.raise_new(IndexError, text.replace("list index", f"{self.python_type().__name__} index"))

    def place(self, interp: Interpreter, key: Value) -> Any:
        """What indexes the host list: a number, or a slice but for deques, which have none."""
        deques = isinstance(self, DequeValue)
        if isinstance(key, SliceValue) and not deques:
            return key.as_slice(interp)
        if isinstance(key, SliceValue) or (key.is_constant() and not hasattr(key.python_type(), "__index__")):
            kind, other = self.python_type().__name__, key.python_type().__name__
            text = f"{kind} indices must be integers or slices, not {other}"
            interp.raise_new(TypeError, f"sequence index must be integer, not {other!r}" if deques else text)
        return interp.index_of(key)

    def copy_with(self, items: list[Value]) -> Value:
        """What a slice of this sequence is."""
        return type(self)(items)


class TupleValue(SequenceValue):
    """A tuple, or an instance of `cls`: a named tuple, torch.Size or torch.return_types."""

    __slots__ = ("cls",)

    def __init__(self, items: list[Value], source: Source | None = None, cls: type = tuple) -> None:
        super().__init__(items, source)
        self.cls = cls

    def build(self, items: list[Any]) -> Any:
        """A real tuple of the class."""
        if self.cls is tuple:
            return tuple(items)
        if hasattr(self.cls, "_fields"):
            return self.cls(*items)
        if self.cls is torch.Size and not all(type(item) is int for item in items):
            return tuple(items)
        return self.cls(items)

    def is_constant(self) -> bool:
        """Whether all items are."""
        return all(item.is_constant() for item in self.items)

    def as_constant(self) -> Any:
        """A real tuple, if all items are constant."""
        return self.build([item.as_constant() for item in self.items])

    def copy_with(self, items: list[Value]) -> Value:
        """Slices of torch.Size keep their class, of named tuples do not."""
        return TupleValue(items, cls=self.cls if self.cls is torch.Size else tuple)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Fields by name, then methods."""
        cls: Any = self.cls
        fields = cls._fields if hasattr(cls, "_fields") else getattr(cls, "__match_args__", ())
        if name in fields:
            return self.items[fields.index(name)]
        if self.cls is not tuple:
            attribute = interp.tracer.class_attribute(self, name)
            if attribute is not None:
                return attribute
            if name in ("_fields", "_field_defaults"):
                return interp.tracer.known(getattr(cls, name))
        return super().get_attr(interp, name)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Build the tuple from its items: another object at each call."""
        fields = hasattr(self.cls, "_fields")
        if self.cls is not tuple:
            emitter.load_callable(tuple.__new__ if fields else self.cls)
            if fields:
                emitter.load_const(self.cls)
        emitter.load_tuple(self.items)
        if self.cls is not tuple:
            emitter.call(2 if fields else 1)


class ListValue(SequenceValue):
    """A list; mutations of one that was read from outside are replayed.

    Args:
        items: its items, or a function that reads and guards them once they are looked at: a list that is only
            appended to may be of any length.
        source: where it was read.
        obj: the real list.
    """

    __slots__ = ("_items", "_read", "obj")
    cls: type = list

    def __init__(
        self, items: list[Value] | Callable[[], list[Value]], source: Source | None = None, obj: list[Any] | None = None
    ) -> None:
        self._read = items if callable(items) else None
        super().__init__([] if callable(items) else items, source)
        self.obj = obj

    @property
    def items(self) -> list[Value]:  # type: ignore[override]
        """All items."""
        if self._read is not None:
            read, self._read = self._read, None
            self._items[:0] = read()
        return self._items

    @items.setter
    def items(self, items: list[Value]) -> None:
        self._items = items

    def add(self, items: list[Value]) -> None:
        """Put items at the end, without a look at what is there."""
        self._items += items

    def build(self, items: list[Any]) -> Any:
        """A real list."""
        return items

    def set_item(self, interp: Interpreter, key: Value, value: Value) -> None:
        """Assign an item or a slice."""
        interp.tracer.effects.mutated(self)
        place = self.place(interp, key.realize())
        try:
            self.items[place] = list(interp.iterate(value)) if isinstance(place, slice) else value  # type: ignore[assignment]
        except (IndexError, ValueError) as error:
            self._refuse(interp, error)

    def del_item(self, interp: Interpreter, key: Value) -> None:
        """Delete an item or a slice."""
        interp.tracer.effects.mutated(self)
        place = self.place(interp, key.realize())
        try:
            del self.items[place]
        except IndexError as error:
            self._refuse(interp, error)

    def _refuse(self, interp: Interpreter, error: Exception) -> NoReturn:
        if isinstance(self, DequeValue):
            interp.raise_new(IndexError, "deque index out of range")
        interp.raise_real(error)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """A new list, registered before its items are loaded, so that it may hold itself."""
        emitter.build_list(0)
        emitter.remember(self)
        if self.items:
            emitter.load_tuple(self.items)
            emitter.list_extend()

    def replay(self, emitter: ValueEmitter) -> Callable[[], None]:
        """Load the new items; the function returned stores them."""
        only_appended = self._read is not None
        temp = emitter.load_to_temp(self._items)

        def store() -> None:
            if only_appended:
                emitter.call_method_on(self, "extend", temp, of=list)
                return
            emitter.load_fast(temp)
            emitter.load(self)
            emitter.load_const(slice(None))
            emitter.store_subscr()

        return store


class DequeValue(ListValue):
    """A collections.deque: its items are one too."""

    __slots__ = ()
    cls = deque

    def __init__(self, items: Any, source: Source | None = None, obj: Any = None, maxlen: int | None = None) -> None:
        held: Any = deque(items, maxlen)
        super().__init__(held, source, obj)

    @property
    def maxlen(self) -> int | None:
        """How many items it may have."""
        return self.items.maxlen  # type: ignore[attr-defined,no-any-return]

    def as_argument(self) -> Any:
        """Deques are no graph arguments."""
        return Value.as_argument(self)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """`maxlen`, then methods."""
        return ConstantValue(self.maxlen) if name == "maxlen" else super().get_attr(interp, name)

    def copy_with(self, items: list[Value]) -> Value:
        """A deque of the same length at most."""
        return DequeValue(items, maxlen=self.maxlen)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`deque(items, maxlen)`."""
        emitter.load_call(deque, TupleValue(list(self.items)), self.maxlen)

    def replay(self, emitter: ValueEmitter) -> Callable[[], None]:
        """`clear()` and `extend(items)`."""
        return emitter.refilling(self, "extend", list(self.items))


class SliceValue(BuiltinValue):
    """A slice object."""

    __slots__ = ("start", "step", "stop")
    cls = slice
    held = ("start", "stop", "step")
    methods: ClassVar[Mapping[str, Any]] = {
        "indices": lambda interp, value, args, kwargs: interp.tracer.known(
            value.as_slice(interp).indices(interp.index_of(args[0]))
        )
    }

    def __init__(self, start: Value, stop: Value, step: Value = NONE, source: Source | None = None) -> None:
        self.source, self.start, self.stop, self.step = source, start, stop, step

    def as_constant(self) -> Any:
        """A real slice of constants."""
        return slice(self.start.as_constant(), self.stop.as_constant(), self.step.as_constant())

    def as_argument(self) -> Any:
        """A slice of graph arguments."""
        return slice(*(part.realize().as_argument() for part in self.children()))

    def as_slice(self, interp: Interpreter) -> slice:
        """A host slice of whole numbers."""
        parts = [part.realize() for part in self.children()]
        return slice(*(None if part.python_type() is type(None) else interp.index_of(part) for part in parts))

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """`start`, `stop`, `step` and methods."""
        if name in ("start", "stop", "step"):
            return getattr(self, name)
        return super().get_attr(interp, name)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Build from the three parts."""
        for part in self.children():
            emitter.load(part)
        emitter.build_slice(3)


def _mutate(function: Any, interp: Interpreter, value: ListValue, args: Args, kwargs: Kwargs) -> Value:
    """A method that changes the host list or deque by `function(items, *args)`."""
    interp.tracer.effects.mutated(value)
    with interp.raising(IndexError, TypeError, ValueError):
        result = function(interp, value.items, *args)
    return NONE if result is None else result


def _mutating(function: Callable[..., Any]) -> Method:
    return partial(_mutate, function)


def _by_name(name: str) -> Method:
    """A method of the host list or deque."""
    return _mutating(lambda interp, items, *args: getattr(items, name)(*args))


def _by_index(name: str) -> Method:
    """The same, where the first argument is a number."""
    return _mutating(lambda interp, items, *args: getattr(items, name)(*map(interp.index_of, args[:1]), *args[1:]))


def _add(
    function: Callable[..., list[Value]], interp: Interpreter, value: ListValue, args: Args, kwargs: Kwargs
) -> Value:
    """A method that puts what `function(*args)` gives at the end."""
    interp.tracer.effects.mutated(value)
    with interp.raising(TypeError):
        value.add(function(interp, *args))
    return NONE


def _find(interp: Interpreter, items: list[Value], item: Value) -> int:
    for index, other in enumerate(items):
        if interp.same_or_equal(other, item):
            return index
    return -1


def _remove(interp: Interpreter, items: Any, item: Value) -> None:
    index = _find(interp, items, item)
    if index < 0 and isinstance(items, deque):
        raise ValueError(f"{interp.formatted(item, 'r', '').as_constant()} is not in deque")
    if index < 0:
        raise ValueError("list.remove(x): x not in list")
    del items[index]


def _sort(interp: Interpreter, value: ListValue, args: Args, kwargs: Kwargs) -> Value:
    interp.tracer.effects.mutated(value)
    value.items[:] = interp.sorted_items(value.items, kwargs.get("key"), kwargs.get("reverse"))
    return NONE


def _index(interp: Interpreter, value: SequenceValue, args: Args, kwargs: Kwargs) -> Value:
    bounds = [interp.index_of(arg.realize()) for arg in args[1:]]
    places = range(len(value.items))[slice(*bounds, *([None] * (2 - len(bounds))))]
    index = _find(interp, [value.items[place] for place in places], args[0])
    if index >= 0:
        return ConstantValue(places[index])
    kind = value.python_type().__name__
    shown = "tuple.index(x): x" if kind == "tuple" else interp.formatted(args[0], "r", "").as_constant()
    interp.raise_new(ValueError, f"{shown} {'not' if kind == 'tuple' else 'is not'} in {kind}")


def _replace(interp: Interpreter, value: TupleValue, args: Args, kwargs: Kwargs) -> Value:
    names = value.cls._fields  # type: ignore[attr-defined]
    return TupleValue([kwargs.get(name, item) for name, item in zip(names, value.items, strict=True)], cls=value.cls)


def _none(result: None) -> Value:
    return NONE


CONTAINER_METHODS: Mapping[str, Method] = {
    "__delitem__": lambda interp, value, args, kwargs: _none(value.del_item(interp, args[0])),
    "__getitem__": lambda interp, value, args, kwargs: value.get_item(interp, args[0]),
    "__len__": lambda interp, value, args, kwargs: ConstantValue(value.length(interp)),
    "__setitem__": lambda interp, value, args, kwargs: _none(value.set_item(interp, args[0], args[1])),
}
"""Special methods that the protocol of values has, of containers that can be written to."""

SEQUENCE_METHODS: Mapping[str, Method] = {
    **{name: CONTAINER_METHODS[name] for name in ("__getitem__", "__len__")},
    "__contains__": lambda interp, value, args, kwargs: ConstantValue(_find(interp, value.items, args[0]) >= 0),
    "count": lambda interp, value, args, kwargs: ConstantValue(
        sum(interp.same_or_equal(item, args[0]) for item in value.items)
    ),
    "index": _index,
}
TupleValue.methods = {
    **SEQUENCE_METHODS,
    "_replace": _replace,
    "numel": lambda interp, value, args, kwargs: interp.fold(torch.Size.numel, [value], {}),
}
LIST_METHODS = ListValue.methods = {
    **SEQUENCE_METHODS, **CONTAINER_METHODS, "append": partial(_add, lambda interp, item: [item]),
    "copy": lambda interp, value, args, kwargs: value.copy_with(list(value.items)),
    "extend": partial(_add, lambda interp, others: list(interp.iterate(others))),
    **{name: _by_name(name) for name in ("clear", "reverse")},
    **{name: _by_index(name) for name in ("insert", "pop")}, "remove": _mutating(_remove), "sort": _sort,
}  # fmt: skip


DequeValue.methods = {
    **{name: method for name, method in LIST_METHODS.items() if name != "sort"},
    **{name: _by_name(name) for name in ("append", "appendleft", "pop", "popleft")},
    "extend": _mutating(lambda interp, items, others: items.extend(list(interp.iterate(others)))),
    "extendleft": _mutating(lambda interp, items, others: items.extendleft(list(interp.iterate(others)))),
    "rotate": _by_index("rotate"),
}  # fmt: skip
