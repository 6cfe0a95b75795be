"""What one torch-level call put on the tape, kept so that an equal call is replayed without dispatch.

Repeated layers make the same calls on tensors of the same metadata: the second layer costs a copy of
records. A template is kept only for calls whose ops depend on nothing but their arguments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from firebrick.ir.index.sizes import expressions, size_of
from firebrick.trace.aliasing import Storage, Value, ViewStep
from firebrick.trace.tape import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._subclasses.fake_tensor import FakeTensor

    from firebrick.trace.tape import Tape

__all__ = ["KeyMaker", "Template", "make_template", "rebuild", "replay"]

_PLAIN = (str, torch.dtype, torch.layout, torch.memory_format, torch.device, type(None), type(...))


_NUMBERS = (bool, int, float, torch.SymInt)


class NotKeyed(Exception):
    """An argument can't be part of a key."""


class KeyMaker:
    """Turns call arguments into hashable keys; metadata of a tensor becomes a small number once."""

    def __init__(self) -> None:
        self._by_meta: dict[Any, int] = {}
        self._by_fake: dict[int, tuple[FakeTensor, int | None]] = {}

    def tensor(self, fake: FakeTensor) -> int:
        """Return the number of `fake`'s metadata."""
        known = self._by_fake.get(id(fake))
        if known is None:
            known = self._by_fake[id(fake)] = (fake, self._number(fake))
        if known[1] is None:
            raise NotKeyed
        return known[1]

    def _number(self, fake: FakeTensor) -> int | None:
        if fake.layout != torch.strided or fake.constant is not None or fake.is_conj() or fake.is_neg():
            return None
        meta = (
            expressions(fake.shape),
            expressions(fake.stride()),
            size_of(fake.storage_offset()),
            fake.dtype,
            fake.fake_device,
            fake.requires_grad,
        )
        return self._by_meta.setdefault(meta, len(self._by_meta))

    def make(self, arg: Any, key: list[Any], slots: list[Value]) -> None:
        """Append the key of `arg`; tensors are numbered in order of first use, in `slots`.

        Raises:
            NotKeyed: the argument has no stable key.
        """
        kind = type(arg)
        if kind is Value:
            for i, slot in enumerate(slots):
                if slot is arg:
                    key.append(("slot", i))
                    return
            slots.append(arg)
            key.append(self.tensor(arg.fake))
        elif kind is int or kind is bool:
            key.append((kind, arg))
        elif kind is float:
            key.append(arg.hex())
        elif kind is torch.SymInt:
            key.append(("size", size_of(arg)))
        elif kind is tuple or kind is list or kind is torch.Size:
            key.append((kind, len(arg)))
            for item in arg:
                self.make(item, key, slots)
        elif kind is slice:
            key.append(slice)
            for item in (arg.start, arg.stop, arg.step):
                self.make(item, key, slots)
        elif kind is dict:
            key.append((dict, tuple(arg)))
            for item in arg.values():
                self.make(item, key, slots)
        elif isinstance(arg, _PLAIN):
            key.append(arg)
        else:
            raise NotKeyed


@dataclass(frozen=True, slots=True)
class _Slot:
    """Stands for the record of the call's i-th tensor argument."""

    index: int


@dataclass(frozen=True, slots=True)
class _Local:
    """Stands for the i-th record of the call."""

    index: int


@dataclass(frozen=True, slots=True)
class _Out:
    """A tensor of the result: `storage` names an argument (-1 - i: the call's own i-th storage)."""

    record: _Slot | _Local
    fake: FakeTensor
    storage: int
    chain: tuple[ViewStep, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """What a call did.

    records: (op, args, kwargs, val). storages: (record, base). values: positions of arguments that are returned, or
    new tensors. result: nest of value numbers.
    """

    records: tuple[tuple[Any, Any, Any, Any], ...]
    storages: tuple[tuple[_Slot | _Local, FakeTensor], ...]
    values: tuple[int | _Out, ...]
    result: Any


class _Unkept(Exception):
    """The call can't be replayed."""


def rebuild(value: Any, items: list[Any]) -> Any:
    """Make a sequence of `value`'s type from `items`."""
    kind = type(value)
    if kind in (tuple, list):
        return kind(items)
    if kind is torch.Size:
        return tuple(items) if any(isinstance(i, Value) for i in items) else kind(items)
    if hasattr(kind, "_fields"):
        return kind(*items)
    return kind(items)


def make_template(slots: list[Value], records: list[Record], result: Any) -> Template | None:
    """Describe the call that appended `records` and returned `result` (tensors as values); None if it can't be kept."""
    places: dict[int, _Slot | _Local] = {}
    for i, slot in enumerate(slots):
        places.setdefault(id(slot.record), _Slot(i))
    for i, record in enumerate(records):
        places[id(record)] = _Local(i)
    try:
        kept = tuple((r.op, _encode(r.args, places), _encode(r.kwargs, places), r.val) for r in records)
        builder = _Results(slots, places)
        shape = builder.encode(result)
    except _Unkept:
        return None
    return Template(kept, tuple(builder.storages), tuple(builder.values), shape)


def _encode(value: Any, places: dict[int, _Slot | _Local]) -> Any:
    if isinstance(value, Record):
        place = places.get(id(value))
        if place is None:
            raise _Unkept
        return place
    if type(value) in (tuple, list):
        return type(value)([_encode(v, places) for v in value])
    if type(value) is dict:
        return {k: _encode(v, places) for k, v in value.items()}
    return value


class _Number:
    """A position in `Template.values`, distinct from plain numbers in the result."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class _Results:
    def __init__(self, slots: list[Value], places: dict[int, _Slot | _Local]) -> None:
        self.slots, self.places = slots, places
        self.values: list[int | _Out] = []
        self.storages: list[tuple[_Slot | _Local, FakeTensor]] = []
        self._numbers: dict[int, int] = {}
        self._storage_numbers = {id(slot.storage): i for i, slot in reversed(list(enumerate(slots)))}

    def encode(self, result: Any) -> Any:
        if isinstance(result, Value):
            number = self._numbers.get(id(result))
            if number is None:
                number = self._numbers[id(result)] = len(self.values)
                self.values.append(self._value(result))
            return _Number(number)
        if isinstance(result, (tuple, list)):
            return rebuild(result, [self.encode(r) for r in result])
        if result is None or isinstance(
            result, (bool, int, float, str, torch.SymInt, torch.dtype, torch.device, torch.Size)
        ):
            return result
        raise _Unkept

    def _place(self, record: Record) -> _Slot | _Local:
        place = self.places.get(id(record))
        if place is None:
            raise _Unkept
        return place

    def _value(self, value: Value) -> int | _Out:
        for i, slot in enumerate(self.slots):
            if slot is value:
                return i
        storage = self._storage_numbers.get(id(value.storage))
        if value.version != value.storage.version:
            raise _Unkept
        if storage is None:
            self.storages.append((self._place(value.storage.record), value.storage.base))
            storage = self._storage_numbers[id(value.storage)] = -len(self.storages)
        chain = value.chain
        if storage >= 0:
            prefix = self.slots[storage].chain
            if chain[: len(prefix)] != prefix:
                raise _Unkept
            chain = chain[len(prefix) :]
            if any(step.op is torch.ops.aten.as_strided.default for step in chain):
                raise _Unkept
        return _Out(self._place(value.record), value.fake, storage, chain)


def replay(template: Template, slots: list[Value], tape: Tape, read: Callable[[Value], Record]) -> Any:
    """Append the template's records for these arguments and return its result."""
    # Functions of the module, not nested ones: one that calls itself is a cycle, which would keep all it sees.
    arguments = [read(slot) for slot in slots]
    made: list[Record] = []
    for op, args, kwargs, val in template.records:
        named = {k: _fill(v, arguments, made) for k, v in kwargs.items()} if kwargs else kwargs
        made.append(tape.add(op, _fill(args, arguments, made), named, val))
    storages = [Storage(_fill(place, arguments, made), base) for place, base in template.storages]
    values: list[Value] = []
    for out in template.values:
        if isinstance(out, int):
            values.append(slots[out])
            continue
        record = _fill(out.record, arguments, made)
        if out.storage < 0:
            values.append(Value(out.fake, storages[-1 - out.storage], out.chain, record))
        else:
            base = slots[out.storage]
            values.append(Value(out.fake, base.storage, base.chain + out.chain, record))
    return _result(template.result, values)


def _fill(value: Any, arguments: list[Record], made: list[Record]) -> Any:
    """Put records in the places of what a template says of them."""
    kind = type(value)
    if kind is _Slot:
        return arguments[value.index]
    if kind is _Local:
        return made[value.index]
    if kind is tuple or kind is list:
        return kind([_fill(v, arguments, made) for v in value])
    return value


def _result(value: Any, values: list[Value]) -> Any:
    if isinstance(value, _Number):
        return values[value.index]
    if isinstance(value, (tuple, list)):
        return rebuild(value, [_result(v, values) for v in value])
    return value
