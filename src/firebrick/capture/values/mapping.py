"""Dictionaries of all kinds and their views, and sets."""

from __future__ import annotations

import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.sources import InstanceAttr
from firebrick.capture.values.address import AddressValue, WeakReferenceValue, number_key
from firebrick.capture.values.base import (
    Args,
    BuiltinValue,
    Interpreter,
    Kwargs,
    NotConstant,
    Source,
    Value,
    ValueEmitter,
)
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.sequence import CONTAINER_METHODS, TupleValue
from firebrick.capture.values.size import SizeValue

DICT_CLASSES = (dict, OrderedDict, defaultdict, Counter)
"""Dictionary classes that are represented in full by `DictValue`."""

_MOST_ASKED = 16
"""Keys that a size is compared with, one guard for each."""


class _Hashed:
    """A key whose class has a `__hash__` and `__eq__` of its own, which are run by the interpreter."""

    __slots__ = ("hashed", "interp", "value")

    def __init__(self, interp: Interpreter, value: Any) -> None:
        self.interp, self.value = interp, value
        self.hashed: int = interp.call(interp.tracer.known(hash), value).realize().as_constant()

    def __hash__(self) -> int:
        return hash(self.hashed)

    def __eq__(self, other: object) -> bool:
        mine = other.value if isinstance(other, _Hashed) else self.interp.tracer.known(other)
        return self.interp.same_or_equal(self.value, mine)


def key_of(value: Value, interp: Interpreter, entries: Mapping[Hashable, Any] | None = None) -> Hashable:
    """A host object that hashes and compares as the value does, to be looked up in `entries`.

    Raises:
        Raised: it has no hash.
        Break: its hash is not known.
    """
    value = value.realize()
    if isinstance(value, ConstantValue):
        hash(value.value)
        number_key(interp.tracer, value.value)
        return value.value
    if isinstance(value, TupleValue):
        return tuple(key_of(item, interp, entries) for item in value.items)
    if isinstance(value, WeakReferenceValue):
        return (weakref.ref, key_of(value.alive(), interp))
    if isinstance(value, AddressValue):
        constant, value = value.key(), value.target
        value.compare()
    elif value.is_constant():
        constant = value.as_constant()
    else:
        kind: Any = value.python_type()
        if kind.__hash__ is None:
            interp.raise_new(TypeError, f"unhashable type: {kind.__name__!r}")
        if isinstance(interp.lookup(kind, "__hash__")[0], FunctionType) and not kind.__module__.startswith("torch"):
            return _Hashed(interp, value)
        if kind.__hash__ is not object.__hash__ and not kind.__module__.startswith("torch"):
            raise Break("unsupported-operation", f"{value.describe()} is hashed by its own __hash__")
        value.compare()
        constant = value.identity()
    hash(constant)
    keys = interp.tracer.keys
    keys[value] = keys.get(value, False) or (entries is not None and constant not in entries)
    return constant


def replace_entries(target: dict[Any, Any], entries: dict[Any, Any]) -> None:
    """Give a dictionary new entries without running methods that its class overrides; called by compiled code."""
    kind = OrderedDict if isinstance(target, OrderedDict) else dict
    kind.clear(target)
    for key, item in entries.items():
        kind.__setitem__(target, key, item)


class DictValue(BuiltinValue):
    """A dict, OrderedDict, defaultdict or Counter.

    `entries` maps a key's host equivalent to the key and item values. One read from outside is
    guarded key by key, until its keys as a whole are looked at.
    """

    __slots__ = ("attributes", "cls", "entries", "factory", "keys_guarded", "obj")

    def __init__(
        self,
        entries: dict[Hashable, tuple[Value, Value]],
        source: Source | None = None,
        cls: type = dict,
        obj: dict[Any, Any] | None = None,
        factory: Value | None = None,
    ) -> None:
        self.source, self.entries, self.cls, self.obj, self.factory = source, entries, cls, obj, factory
        self.keys_guarded = obj is None
        self.attributes: dict[str, Value] = {}  # of an OrderedDict, that captured code has set

    @classmethod
    def of(cls, items: Mapping[str, Value]) -> DictValue:
        """A new dict with text keys."""
        return cls({name: (ConstantValue(name), item) for name, item in items.items()})

    def as_argument(self) -> Any:
        """A dict of graph arguments, keyed by constants."""
        return {key.realize().as_constant(): item.realize().as_argument() for key, item in self.entries.values()}

    def whole(self, interp: Interpreter) -> dict[Hashable, tuple[Value, Value]]:
        """The entries, after guarding the set and order of keys."""
        if not self.keys_guarded:
            self.keys_guarded = True
            interp.tracer.guard_keys(self)
        return self.entries

    def mutate(self, interp: Interpreter) -> dict[Hashable, tuple[Value, Value]]:
        """The entries, to be changed."""
        interp.tracer.effects.mutated(self)
        return self.whole(interp)

    def lookup(self, interp: Interpreter, key: Value) -> Value | None:
        """The item at `key`, guarding its absence if there is none. A size is asked whether it is a key, one by one."""
        size = key.realize()
        few = len(self.entries) <= _MOST_ASKED and {*map(type, self.entries)} <= {int}
        if few and isinstance(size, SizeValue) and not size.nodes.sizes.of_data(size.nodes.sizes.settled(size.expr)):
            equal = (k for k in self.whole(interp) if size.nodes.asked("==", size.expr, k))  # type: ignore[arg-type]
            key = ConstantValue(next(equal, None))
        with interp.raising(TypeError):
            entry = self.entries.get(key_of(key, interp, self.entries))
        if entry is not None:
            interp.tracer.found.append(entry[1])
            return entry[1]
        if not self.keys_guarded:
            interp.tracer.guard_missing_key(self, key)
        return None

    def length(self, interp: Interpreter) -> int:
        """Number of entries."""
        return len(self.whole(interp))

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """Keys in order."""
        entries = self.whole(interp)
        with interp.raising(RuntimeError):
            for key, _ in entries.values():
                yield key

    def get_item(self, interp: Interpreter, key: Value) -> Value:
        """The item, `__missing__`'s, or KeyError."""
        item = self.lookup(interp, key)
        if item is not None:
            return item
        if self.factory is not None and self.factory.realize().python_type() is not type(None):
            default = self.factory.realize().call(interp, [], {})
            self.set_item(interp, key, default)
            return default
        if self.cls is Counter:
            return ConstantValue(0)
        interp.raise_value(KeyError, [key])

    def set_item(self, interp: Interpreter, key: Value, value: Value) -> None:
        """Add or replace an entry."""
        self.put(interp, self.mutate(interp), key, value)

    @staticmethod
    def put(interp: Interpreter, entries: dict[Hashable, tuple[Value, Value]], key: Value, value: Value) -> None:
        """Add or replace an entry among those of a dict that may still be in the making."""
        with interp.raising(TypeError):
            host = key_of(key, interp, entries)
        key, before = entries.get(host, (key, None))
        interp.tracer.effects.overwritten(before)
        entries[host] = (key, value)

    def del_item(self, interp: Interpreter, key: Value) -> None:
        """Remove an entry."""
        if self.lookup(interp, key) is None:
            interp.raise_value(KeyError, [key])
        del self.mutate(interp)[key_of(key, interp)]

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Bound methods."""
        if name == "default_factory" and self.cls is defaultdict:
            return self.factory or NONE
        if name in self.attributes:
            return self.attributes[name]
        if self.source is not None and self.cls.__dictoffset__ and not hasattr(self.cls, name):
            if name in vars(self.obj):
                return interp.tracer.read(vars(self.obj)[name], InstanceAttr(self.source, name))
            interp.tracer.guards.lacks_attribute(self.source, name)
        return super().get_attr(interp, name)

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Of an OrderedDict or Counter, whose instances have a `__dict__`."""
        if not self.cls.__dictoffset__ or hasattr(self.cls, name):
            super().set_attr(interp, name, value)
        self.mutate(interp)
        self.attributes[name] = value

    def children(self) -> Sequence[Value]:
        """Keys, items and attributes."""
        return [*(part for entry in self.entries.values() for part in entry), *self.attributes.values()]

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """A new dictionary, registered before its entries are loaded."""
        if self.cls is dict:
            emitter.build_map(0)
        else:
            emitter.load_call(self.cls, *([self.factory or NONE] if self.cls is defaultdict else []))
        emitter.remember(self)
        emitter.set_attributes(self.attributes)
        if not self.entries:
            return
        ordered = issubclass(self.cls, OrderedDict)  # keeps its order beside the dict, where DICT_UPDATE can't see it
        if ordered:
            emitter.load_callable(replace_entries)
            emitter.load(self)
        emitter.load_map(self.entries.values())
        if ordered:
            emitter.call(2)
            emitter.pop()
        else:
            emitter.dict_update()

    def replay(self, emitter: ValueEmitter) -> Callable[[], None]:
        """Load the new entries; the function returned stores them."""
        emitter.load_map(self.entries.values())
        temp = emitter.store_temp()
        attributes = {name: emitter.load_to_temp(value) for name, value in self.attributes.items()}

        def store() -> None:
            emitter.run_call(replace_entries, self, temps=[temp])
            for name, stored in attributes.items():
                emitter.run_call(setattr, self, name, temps=[stored])

        return store


class SetValue(BuiltinValue):
    """A set or frozenset; `entries` maps a member's host equivalent to it."""

    __slots__ = ("cls", "entries", "obj")
    held = ("entries",)

    def __init__(
        self, entries: dict[Hashable, Value], source: Source | None = None, cls: type = set, obj: Any = None
    ) -> None:
        self.source, self.entries, self.cls, self.obj = source, entries, cls, obj

    @classmethod
    def of(cls, interp: Interpreter, items: Iterator[Value], kind: type = set) -> SetValue:
        """A new set of `items`."""
        entries: dict[Hashable, Value] = {}
        with interp.raising(TypeError):
            for item in items:
                entries.setdefault(key_of(item, interp, entries), item)
        return cls(entries, cls=kind)

    def as_constant(self) -> Any:
        """A frozenset of constants; sets can change."""
        if self.cls is not frozenset:
            raise NotConstant("set")
        return frozenset(item.as_constant() for item in self.entries.values())

    def as_argument(self) -> Any:
        """A set of graph arguments."""
        return self.cls(item.realize().as_argument() for item in self.entries.values())

    def mutate(self, interp: Interpreter) -> dict[Hashable, Value]:
        """The members, to be changed."""
        interp.tracer.effects.mutated(self)
        return self.entries

    def length(self, interp: Interpreter) -> int:
        """Number of members."""
        return len(self.entries)

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """Members in the order that a real set of them gives, where that can be known."""
        try:
            order = list(self.cls(item.as_constant() for item in self.entries.values()))
        except NotConstant:
            return iter(list(self.entries.values()))
        return iter([self.entries[item] for item in order])

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Build from the members."""
        if self.cls is not set:
            emitter.load_callable(self.cls)
        for item in self.entries.values():
            emitter.load(item)
        emitter.build_set(len(self.entries))
        if self.cls is not set:
            emitter.call(1)

    def replay(self, emitter: ValueEmitter) -> Callable[[], None]:
        """`clear()` and `update(members)`."""
        return emitter.refilling(self, "update", list(self.entries.values()))


class ViewValue(BuiltinValue):
    """`keys()`, `values()` or `items()` of a dictionary."""

    __slots__ = ("kind", "owner")
    held = ("owner",)

    def __init__(self, owner: DictValue, kind: str) -> None:
        self.owner, self.kind = owner, kind

    def python_type(self) -> type:
        """The view's class."""
        return type(getattr(self.owner.cls(), self.kind)())

    def length(self, interp: Interpreter) -> int:
        """Number of entries."""
        return self.owner.length(interp)

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """What the view shows."""
        entries = self.owner.whole(interp)
        with interp.raising(RuntimeError):
            for key, item in entries.values():
                yield key if self.kind == "keys" else item if self.kind == "values" else TupleValue([key, item])

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Set methods of key views."""
        if self.kind == "keys" and name == "__contains__":
            return ConstantValue(self.owner.lookup(interp, args[0]) is not None)
        if self.kind == "items" and name == "__contains__":
            pair = args[0].realize()
            if not isinstance(pair, TupleValue) or len(pair.items) != 2:
                return ConstantValue(False)
            item = self.owner.lookup(interp, pair.items[0])
            return ConstantValue(item is not None and interp.same_or_equal(item, pair.items[1]))
        if self.kind != "values" and name in SET_METHODS:
            return SET_METHODS[name](interp, SetValue.of(interp, self.iterate(interp)), args, kwargs)
        return interp.fallback_method(self, name, args, kwargs)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Ask the dictionary for it."""
        emitter.call_method_on(self.owner, self.kind, keep=True)


# -- methods of dictionaries ------------------------------------------------------


def _get(interp: Interpreter, value: DictValue, args: Args, kwargs: Kwargs) -> Value:
    item = value.lookup(interp, args[0])
    return item or (args[1] if len(args) > 1 else NONE)


def _set_default(interp: Interpreter, value: DictValue, args: Args, kwargs: Kwargs) -> Value:
    item = value.lookup(interp, args[0])
    if item is not None:
        return item
    default = args[1] if len(args) > 1 else NONE
    value.set_item(interp, args[0], default)
    return default


def _pop(interp: Interpreter, value: DictValue, args: Args, kwargs: Kwargs) -> Value:
    item = value.lookup(interp, args[0])
    if item is not None:
        del value.mutate(interp)[key_of(args[0], interp)]
        return item
    if len(args) > 1:
        return args[1]
    interp.raise_value(KeyError, [args[0]])


def _pop_item(interp: Interpreter, value: DictValue, args: Args, kwargs: Kwargs) -> Value:
    entries = value.mutate(interp)
    if not entries:
        interp.raise_new(KeyError, "popitem(): dictionary is empty")
    last = interp.flag(args[0] if args else kwargs.get("last"), True)
    host = next(reversed(entries)) if last else next(iter(entries))
    return TupleValue(list(entries.pop(host)))


def pairs_of(interp: Interpreter, other: Value) -> Iterator[tuple[Value, Value]]:
    """Entries that `dict(other)` would have."""
    other = other.realize()
    storage = interp.tracer.dict_storage(other)
    if storage is not None:
        yield from list(storage.whole(interp).values())
        return
    if interp.has_attr(other, "keys"):
        for key in interp.iterate(other.call_method(interp, "keys", [], {})):
            yield key, other.get_item(interp, key)
        return
    for index, pair in enumerate(interp.iterate(other)):
        if not hasattr(pair.python_type(), "__iter__") and not hasattr(pair.python_type(), "__getitem__"):
            interp.raise_new(TypeError, f"cannot convert dictionary update sequence element #{index} to a sequence")
        items = list(interp.iterate(pair))
        if len(items) != 2:
            text = f"dictionary update sequence element #{index} has length {len(items)}; 2 is required"
            interp.raise_new(ValueError, text)
        yield items[0], items[1]


def _update(interp: Interpreter, value: DictValue, args: Args, kwargs: Kwargs) -> Value:
    if value.cls is Counter:
        return interp.fallback_method(value, "update", args, kwargs)
    for other in args:
        for key, item in pairs_of(interp, other):
            value.set_item(interp, key, item)
    for name, item in kwargs.items():
        value.set_item(interp, ConstantValue(name), item)
    return NONE


def _clear(interp: Interpreter, value: DictValue | SetValue, args: Args, kwargs: Kwargs) -> Value:
    value.mutate(interp).clear()
    return NONE


def _view(kind: str, interp: Interpreter, value: DictValue, args: Args, kwargs: Kwargs) -> Value:
    return ViewValue(value, kind)


def _move_to_end(interp: Interpreter, value: DictValue, args: Args, kwargs: Kwargs) -> Value:
    entries = value.mutate(interp)
    host = key_of(args[0], interp, entries)
    if host not in entries:
        interp.raise_value(KeyError, [args[0]])
    ordered = OrderedDict(entries)
    ordered.move_to_end(host, interp.flag(args[1] if len(args) > 1 else kwargs.get("last"), True))
    entries.clear()
    entries.update(ordered)
    return NONE


DictValue.methods = {
    **CONTAINER_METHODS,
    "__contains__": lambda interp, value, args, kwargs: ConstantValue(value.lookup(interp, args[0]) is not None),
    "clear": _clear,
    "copy": lambda at, value, args, kwargs: DictValue(dict(value.whole(at)), cls=value.cls, factory=value.factory),
    "get": _get,
    **{name: partial(_view, name) for name in ("items", "keys", "values")},
    "move_to_end": _move_to_end,
    "pop": _pop,
    "popitem": _pop_item,
    "setdefault": _set_default,
    "update": _update,
}

# -- methods of sets ----------------------------------------------------------------


def _add(interp: Interpreter, value: SetValue, args: Args, kwargs: Kwargs) -> Value:
    with interp.raising(TypeError):
        value.mutate(interp).setdefault(key_of(args[0], interp, value.entries), args[0])
    return NONE


def _remove(interp: Interpreter, value: SetValue, args: Args, kwargs: Kwargs, *, there: bool = True) -> Value:
    if value.mutate(interp).pop(key_of(args[0], interp, value.entries), None) is None and there:
        interp.raise_value(KeyError, [args[0]])
    return NONE


def _members(interp: Interpreter, others: Sequence[Value]) -> list[dict[Hashable, Value]]:
    return [SetValue.of(interp, interp.iterate(other)).entries for other in others]


def _algebra(name: str, interp: Interpreter, value: SetValue, args: Args, kwargs: Kwargs) -> SetValue:
    """A new set, of the members that a real set of their host equivalents would have."""
    others = _members(interp, args)
    members = getattr(set(value.entries), name)(*others)
    every = dict(value.entries)
    for other in others:
        every |= {host: item for host, item in other.items() if host not in every}
    return SetValue({host: item for host, item in every.items() if host in members}, cls=value.cls)


def _in_place(name: str, interp: Interpreter, value: SetValue, args: Args, kwargs: Kwargs) -> Value:
    entries = _algebra(name, interp, value, args, kwargs).entries
    value.mutate(interp)
    value.entries = dict(entries)
    return NONE


def _relation(name: str, interp: Interpreter, value: SetValue, args: Args, kwargs: Kwargs) -> Value:
    (other,) = _members(interp, args)
    return ConstantValue(getattr(set(value.entries), name)(other))


def _pop_member(interp: Interpreter, value: SetValue, args: Args, kwargs: Kwargs) -> Value:
    entries = value.mutate(interp)
    if not entries:
        interp.raise_new(KeyError, "pop from an empty set")
    first = next(value.iterate(interp))
    del entries[key_of(first, interp)]
    return first


_UPDATES = {f"{name}_update": name for name in ("difference", "intersection", "symmetric_difference")} | {
    "update": "union"
}

SET_METHODS = SetValue.methods = {
    **{name: partial(_algebra, name) for name in _UPDATES.values()},
    **{update: partial(_in_place, name) for update, name in _UPDATES.items()},
    **{name: partial(_relation, name) for name in ("isdisjoint", "issubset", "issuperset")},
    "__contains__": lambda at, value, args, _: ConstantValue(key_of(args[0], at, value.entries) in value.entries),
    "__len__": CONTAINER_METHODS["__len__"],
    "add": _add,
    "clear": _clear,
    "copy": lambda interp, value, args, kwargs: SetValue(dict(value.entries), cls=value.cls),
    "discard": partial(_remove, there=False),
    "pop": _pop_member,
    "remove": _remove,
}
