"""Instances of Python classes, by the rules of `object.__getattribute__` and `object.__setattr__`."""

from __future__ import annotations

import functools
import itertools
import threading
import types
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, NoReturn

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.sources import Attr, InstanceAttr, InstanceDict
from firebrick.capture.values.base import (
    Args,
    BuiltinValue,
    ComparedValue,
    Interpreter,
    Kwargs,
    NotConstant,
    Raised,
    Source,
    Value,
    ValueEmitter,
)
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.function import BoundMethodValue, CallableValue, RawMethod
from firebrick.capture.values.mapping import DictValue, SetValue
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.sequence import CONTAINER_METHODS, ListValue, TupleValue


class Overridden(Exception):
    """An argument of a call of torch has a `__torch_function__`, which decides what the call does."""


MISSING: Any = object()
"""No such attribute."""

MEMBERS = (types.MemberDescriptorType, types.GetSetDescriptorType)
WRITTEN = (types.FunctionType, staticmethod, classmethod, property)
"""What a class's own Python gives for a special method."""
BUILTIN_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


def class_lookup(cls: type, name: str) -> tuple[Any, type | None]:
    """The raw attribute in the class or its bases, and its owner; MISSING if there is none."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name], base
    return MISSING, None


CACHED = type(functools.lru_cache(lambda: None))
_FIELD = type(vars(namedtuple("_One", "field"))["field"])
_ODD_KINDS = (types.NoneType, type, staticmethod, classmethod, property, CACHED)
OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift", "divmod": "divmod",
}  # fmt: skip
"""Binary operators -> the name that their special methods have in common."""
_CALLED = ("call", "getitem", "setitem", "delitem", "enter", "exit", "next", "eq", "ne", "lt", "le", "gt", "ge")
_TOLD = (
    "bool", "len", "iter", "reversed", "contains", "index", "int", "float", "complex", "str", "repr", "format", "bytes",
    "neg", "pos", "invert", "abs", "round", "trunc", "floor", "ceil", "missing", "getattr", "getattribute", "setattr",
    "delattr", "get", "set", "delete",
)  # fmt: skip
_ODD: Mapping[str, tuple[type, ...]] = {
    **{f"__{prefix}{name}__": (types.NoneType,) for name in OPERATORS.values() for prefix in ("", "r", "i")},
    **{f"__{name}__": (types.NoneType,) for name in _CALLED},
    **{f"__{name}__": _ODD_KINDS for name in _TOLD},
}
"""A special method -> what it may not be; many are told from built-in ones by being functions."""


def is_odd_method(cls: type, name: str, entry: Any) -> bool:
    """Whether a class holds something else than a function for a special method: None, a static method, an object."""
    kinds = _ODD.get(name)
    if kinds is None or entry is MISSING or issubclass(cls, type):
        return False
    return isinstance(entry, kinds) or (kinds is _ODD_KINDS and not hasattr(type(entry), "__get__"))


def bind(interp: Interpreter, entry: Any, owner: type, instance: Value, name: str) -> Value:
    """What reading class attribute `entry` through `instance` gives."""
    tracer = interp.tracer
    if isinstance(entry, types.FunctionType):
        return BoundMethodValue(tracer.function(entry), instance)
    if isinstance(entry, property):
        if entry.fget is None:
            interp.raise_new(AttributeError, f"property {name!r} has no getter")
        return tracer.known(entry.fget).call(interp, [instance], {})
    if isinstance(entry, staticmethod):
        return tracer.known(entry.__func__)
    if isinstance(entry, classmethod):
        return BoundMethodValue(tracer.known(entry.__func__), tracer.known(instance.python_type()))
    if isinstance(entry, functools.cached_property):
        value = tracer.known(entry.func).call(interp, [instance], {})
        if isinstance(instance, ObjectValue):
            instance.store(interp, name, value)
        return value
    if isinstance(entry, (*BUILTIN_METHODS, CACHED)) or type(entry).__name__ == "instancemethod":  # of pybind11
        return BoundMethodValue(CallableValue(entry), instance)
    if isinstance(entry, types.BuiltinFunctionType):
        return CallableValue(entry)
    if type(entry) is _FIELD and isinstance(instance, ObjectValue) and isinstance(instance.storage, TupleValue):
        return instance.storage.items[entry.__reduce__()[1][0]]
    getter, _ = interp.lookup(type(entry), "__get__")
    if isinstance(getter, types.FunctionType):
        return tracer.known(entry).call_method(interp, "__get__", [instance, tracer.known(instance.python_type())], {})
    if getter is not MISSING and not isinstance(entry, type):
        raise Break("unsupported-attribute", f"{name} of {instance.describe()} is a {type(entry).__name__}")
    return tracer.class_value(owner, name, entry)


_NOT_SUPPORTED: Mapping[str, str] = {
    "__getitem__": "'{}' object is not subscriptable", "__setitem__": "'{}' object does not support item assignment",
    "__delitem__": "'{}' object does not support item deletion", "__next__": "'{}' object is not an iterator",
    "__abs__": "bad operand type for abs(): '{}'", "__round__": "type {} doesn't define __round__ method",
    "__index__": "'{}' object cannot be interpreted as an integer",
}  # fmt: skip
"""What an operation says of a class that has no such method."""

_RESULTS: Mapping[str, type] = {
    **dict.fromkeys(("__len__", "__index__", "__hash__", "__int__"), int),
    **dict.fromkeys(("__str__", "__repr__", "__format__"), str), "__float__": float, "__complex__": complex,
}  # fmt: skip
"""What special methods must give, where an instance of a derived class will do."""

_ONE_SLOT = {"__setitem__": "__delitem__", "__delitem__": "__setitem__"}
"""Methods that share a slot of the class: where it has the other one, it lacks this one as an attribute."""


class ObjectValue(ComparedValue):
    """An instance. `obj` is the real one, None if captured code made it.

    `fields` overlays the instance's attributes: what was read or written so far. Instances of
    subclasses of built-in containers keep the container's part in `storage`.
    """

    __slots__ = ("changed", "cls", "fields", "fixed", "obj", "storage")

    def __init__(
        self,
        cls: type,
        obj: Any = None,
        source: Source | None = None,
        storage: Value | None = None,
        *,
        fixed: bool = False,
    ) -> None:
        self.source, self.cls, self.obj, self.storage, self.fixed = source, cls, obj, storage, fixed
        self.fields: dict[str, Any] = {}
        self.changed: dict[str, bool] = {}
        """Attributes to store; whether each is to be deleted first, which moves it to the end."""

    def identity(self) -> object:
        """The real object, or this value."""
        return self if self.obj is None else self.obj

    def as_constant(self) -> Any:
        """The real object, where it is known by identity."""
        if self.fixed and not self.changed:
            return self.obj
        raise NotConstant(self.cls.__name__)

    def as_argument(self) -> Any:
        """Containers stand as their storage."""
        if self.storage is not None:
            return self.storage.as_argument()
        if self.fixed:
            return self.obj
        if self.overrides():
            raise Overridden(self)
        return super().as_argument()

    def overrides(self) -> bool:
        """Whether its class sees calls of torch with it."""
        return class_lookup(self.cls, "__torch_function__")[0] is not MISSING

    # -- attributes -----------------------------------------------------------

    def own(self, interp: Interpreter, name: str) -> Any:
        """The instance's own attribute, or MISSING; a guard says which."""
        field = self.fields.get(name)
        if field is not None:
            return field
        if self.obj is None:
            return MISSING
        namespace = getattr(self.obj, "__dict__", None)
        by = Attr if self.is_local() else InstanceAttr
        if namespace is not None and name in namespace:
            value = interp.tracer.read(namespace[name], by(self.base(interp), name))
            self.fields[name] = value
            interp.tracer.found.append(value)
            return value
        if namespace is not None:
            interp.tracer.guard_no_attribute(self, name)
        return MISSING

    def is_local(self) -> bool:
        """Whether each thread has a `__dict__` of it, where no guard of the usual kind looks."""
        return issubclass(self.cls, threading.local)

    def base(self, interp: Interpreter) -> Source:
        """Source that attributes are read from."""
        return self.source if self.source is not None else interp.tracer.const_source(self.obj)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """`object.__getattribute__`, or the class's own, then `__getattr__`."""
        value = self._by_class(interp, "__getattribute__", ConstantValue(name))
        return self.generic_get_attr(interp, name) if value is None else value

    def _by_class(self, interp: Interpreter, method: str, *args: Value) -> Value | None:
        """What a method of the class's own gives; None where it has that of `object`."""
        entry, owner = interp.lookup(self.cls, method)
        if not isinstance(entry, types.FunctionType) or owner is object:
            return None
        return interp.tracer.function(entry).call(interp, [self, *args], {})

    def generic_get_attr(self, interp: Interpreter, name: str) -> Value:
        """Data descriptor, own attribute, class attribute, `__getattr__`, in this order."""
        if name == "__dict__" and self.cls.__dictoffset__:
            return InstanceDictValue(self)
        if name == "__class__":
            return interp.tracer.known(self.cls)
        if name == "__weakref__":
            raise Break("unsupported-attribute", f"{name} of {self.describe()} is read")
        entry, owner = interp.lookup(self.cls, name)
        if entry is not MISSING:
            assert owner is not None
            if isinstance(entry, MEMBERS):
                return self.member(interp, entry, name)
            if _is_data_descriptor(entry):
                try:
                    return bind(interp, entry, owner, self, name)
                except Raised as raised:
                    return self._missing(interp, name, raised)
        value = self.own(interp, name)
        if value is not MISSING:
            return value
        if entry is not MISSING:
            assert owner is not None
            if isinstance(entry, BUILTIN_METHODS) and isinstance(self.storage, BuiltinValue):
                return self.storage_method(interp, name)
            return bind(interp, entry, owner, self, name)
        return self._missing(interp, name, None)

    def slot(self, interp: Interpreter, entry: Any, name: str) -> Any:
        """What a slot holds, or an attribute computed in C, or MISSING; a guard says which."""
        own = self.fields.get(name)
        if own is not None or self.obj is None:
            return MISSING if own is None else own
        try:
            real = entry.__get__(self.obj, self.cls)
        except AttributeError:
            if interp.lookup(self.cls, "__getattr__")[0] is not MISSING:  # the guard would run it
                raise Break("unsupported-attribute", f"{name} of {self.describe()}, an empty slot, is read") from None
            interp.tracer.guards.lacks_attribute(self.base(interp), name)
            return MISSING
        value = self.fields[name] = interp.tracer.read(real, Attr(self.base(interp), name))
        interp.tracer.found.append(value)
        return value

    def member(self, interp: Interpreter, entry: Any, name: str) -> Value:
        """Its value, or that of `__getattr__`."""
        value: Any = self.slot(interp, entry, name)
        if value is not MISSING:
            return value  # type: ignore[no-any-return]
        if interp.lookup(self.cls, "__getattr__")[0] is MISSING:
            _refuse(interp, self.cls, name, lambda blank: entry.__get__(blank, self.cls))
        return self._missing(interp, name, None)

    def _missing(self, interp: Interpreter, name: str, raised: Raised | None) -> Value:
        if raised is not None and not interp.is_instance(raised.value, AttributeError):
            raise Raised(raised.value)
        value = self._by_class(interp, "__getattr__", ConstantValue(name))
        if value is not None:
            return value
        if raised is not None:
            raise Raised(raised.value)
        interp.raise_new(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """The class's `__setattr__`, or `object.__setattr__`."""
        if self._by_class(interp, "__setattr__", ConstantValue(name), value) is None:
            self.generic_set_attr(interp, name, value)

    def generic_set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Data descriptor, else own attribute."""
        entry, _ = interp.lookup(self.cls, name)
        if _handled(self, interp, entry, name, "__set__", value):
            return
        if name == "__class__":
            raise Break("unsupported-attribute", f"__class__ of {self.describe()} is set")
        if not (self.cls.__dictoffset__ or self.is_local() or isinstance(entry, MEMBERS)):
            _refuse(interp, self.cls, name, lambda blank: object.__setattr__(blank, name, None))
        self.store(interp, name, value)

    def store(self, interp: Interpreter, name: str, value: Value) -> None:
        """Write the instance's own attribute."""
        interp.tracer.effects.mutated(self)
        moved = self.fields.get(name) is MISSING or self.changed.get(name, False)
        interp.tracer.effects.overwritten(self.fields.get(name))
        if self.fields.get(name) is MISSING:
            self.changed.pop(name, None)
            self.fields.pop(name)
        self.fields[name] = value
        self.changed[name] = moved

    def del_attr(self, interp: Interpreter, name: str) -> None:
        """The class's `__delattr__`, or the own attribute."""
        if self._by_class(interp, "__delattr__", ConstantValue(name)) is None:
            self.generic_del_attr(interp, name)

    def generic_del_attr(self, interp: Interpreter, name: str) -> None:
        """Data descriptor, else own attribute."""
        entry, _ = interp.lookup(self.cls, name)
        if _handled(self, interp, entry, name, "__delete__"):
            return
        slot = isinstance(entry, MEMBERS)
        own = self.own(interp, name)
        if own is MISSING and slot and self.obj is not None and hasattr(self.obj, name):
            raise Break("unsupported-attribute", f"{name} of {self.describe()} is deleted")
        if own is MISSING:
            text = name if slot else f"{self.cls.__name__!r} object has no attribute {name!r}"
            interp.raise_new(AttributeError, text)
        self.forget(interp, name)

    def forget(self, interp: Interpreter, name: str) -> None:
        """Delete the instance's own attribute."""
        interp.tracer.effects.mutated(self)
        self.fields[name] = MISSING
        self.changed[name] = True

    # -- operations through special methods -------------------------------------

    def special(self, interp: Interpreter, name: str) -> Value | None:
        """The special method of the class, bound; None if it has none."""
        entry, owner = interp.lookup(self.cls, name)
        if entry is MISSING or entry is None:
            return None
        assert owner is not None
        if self.storage is not None and isinstance(entry, BUILTIN_METHODS):
            return self.storage_method(interp, name)
        return bind(interp, entry, owner, self, name)

    def storage_method(self, interp: Interpreter, name: str) -> Value:
        """A method of the container's part; reading an item of a dict falls back on the class's `__missing__`."""
        assert self.storage is not None
        if name == "__getitem__" and isinstance(self.storage, DictValue):
            hook, _ = interp.lookup(self.cls, "__missing__")
            if isinstance(hook, types.FunctionType):
                lookup, missing = self.storage.lookup, interp.tracer.function(hook)
                return RawMethod(lambda at, args, _: lookup(at, args[0]) or missing.call(at, [self, args[0]], {}))
        return MethodValue(self.storage, name)

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """`__call__`."""
        method = self.special(interp, "__call__")
        if method is None:
            interp.raise_new(TypeError, f"{self.cls.__name__!r} object is not callable")
        return method.call(interp, args, kwargs)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Special methods are looked up in the class, others as attributes."""
        if name.startswith("__") and name.endswith("__"):
            method = self.special(interp, name)
            if method is not None:
                return method.realize().call(interp, args, kwargs)
            other = _ONE_SLOT.get(name)
            if other is not None and interp.lookup(self.cls, other)[1] is not None:
                interp.raise_new(AttributeError, name)
            if name in _NOT_SUPPORTED:
                interp.raise_new(TypeError, _NOT_SUPPORTED[name].format(self.cls.__name__))
        return super().call_method(interp, name, args, kwargs)

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """`__iter__`, the container's own, or `__getitem__` from 0 on."""
        entry, _ = interp.lookup(self.cls, "__iter__")
        if isinstance(entry, WRITTEN):
            iterator = interp.iterator(self)
            return interp.iterate_next(iterator) if isinstance(iterator, ObjectValue) else interp.iterate(iterator)
        if self.storage is not None:
            return self.storage.iterate(interp)
        if interp.lookup(self.cls, "__next__")[0] is not MISSING and entry is not MISSING:
            return interp.iterate_next(self)
        if interp.lookup(self.cls, "__getitem__")[0] is not MISSING:
            places, read = itertools.count(), partial(interp.attempt, IndexError, self.get_item, interp)
            return iter(lambda: read(ConstantValue(next(places))), None)
        return super().iterate(interp)

    def length(self, interp: Interpreter) -> int:
        """`__len__`, or the container's own."""
        entry, _ = interp.lookup(self.cls, "__len__")
        if isinstance(entry, WRITTEN):
            return converted(interp, self, "__len__", len).as_constant()
        if self.storage is not None:
            return self.storage.length(interp)
        interp.raise_new(TypeError, f"object of type {self.cls.__name__!r} has no len()")

    def truth(self, interp: Interpreter) -> bool:
        """`__bool__`, `__len__`, else true."""
        entry, _ = interp.lookup(self.cls, "__bool__")
        if entry is not MISSING and not isinstance(entry, BUILTIN_METHODS):
            return converted(interp, self, "__bool__", bool).truth(interp)
        own = entry is MISSING and isinstance(interp.lookup(self.cls, "__len__")[0], WRITTEN)
        if self.storage is not None and not own:
            return self.storage.truth(interp)
        if interp.lookup(self.cls, "__len__")[0] is not MISSING:
            return self.length(interp) != 0
        return bool(self.as_constant()) if entry is not MISSING else True

    # -- leaving ----------------------------------------------------------------

    def children(self) -> Sequence[Value]:
        """Attributes of new objects and the container's items."""
        parts = [] if self.storage is None else [self.storage]
        return [*parts, *(value for value in self.fields.values() if value is not MISSING)]

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`cls.__new__(cls)`, then the attributes as they are now."""
        if self.obj is not None:
            emitter.load_const(self.obj)
            return
        storage = self.storage
        kind = builtin_base(self.cls)
        emitter.load_callable(kind.__new__)
        emitter.load_const(self.cls)
        immutable = isinstance(storage, (TupleValue, ConstantValue)) or (
            isinstance(storage, SetValue) and storage.cls is frozenset
        )
        if immutable:
            assert storage is not None
            emitter.load(TupleValue(storage.items) if isinstance(storage, TupleValue) else storage)
        emitter.call(2 if immutable else 1)
        emitter.remember(self)
        if isinstance(storage, (DictValue, ListValue, SetValue)) and not immutable:
            _fill(self, emitter, storage)
        store_fields(emitter, self, self.fields)

    def replay(self, emitter: ValueEmitter) -> Callable[[], None]:
        """Load the changed attributes; the function returned stores them."""
        temps = {
            name: None if self.fields[name] is MISSING else emitter.load_to_temp(self.fields[name])
            for name in self.changed
        }
        slots = {name for name in self.changed if isinstance(class_lookup(self.cls, name)[0], MEMBERS)}
        had = {*getattr(self.obj, "__dict__", ()), *(name for name in slots if hasattr(self.obj, name))}
        gone = [name for name, first in self.changed.items() if first and name in had]

        def store() -> None:
            for name in gone:
                _store(emitter, self, name, None)
            for name, temp in temps.items():
                if temp is not None:
                    _store(emitter, self, name, partial(emitter.load_fast, temp))

        return store


def _handled(owner: ObjectValue, interp: Interpreter, entry: Any, name: str, method: str, *args: Value) -> bool:
    """Whether a data descriptor of the class has done what is asked for."""
    if entry is MISSING or isinstance(entry, MEMBERS) or not _is_data_descriptor(entry):
        return False
    if isinstance(entry, property):
        function, kind = (entry.fset, "setter") if args else (entry.fdel, "deleter")
        if function is None:
            interp.raise_new(AttributeError, f"property {name!r} of {owner.cls.__name__!r} object has no {kind}")
        interp.tracer.known(function).call(interp, [owner, *args], {})
    elif isinstance(interp.lookup(type(entry), method)[0], types.FunctionType):
        interp.tracer.known(entry).call_method(interp, method, [owner, *args], {})
    else:
        raise Break("unsupported-attribute", f"{name} of {owner.describe()} is set or deleted")
    return True


def overriding(interp: Interpreter, value: ObjectValue, name: str) -> bool:
    """Whether a special method is the class's own, and not that of the container's part."""
    entry, _ = interp.lookup(value.cls, name)
    return value.storage is None or not (entry is MISSING or isinstance(entry, BUILTIN_METHODS))


def converted(interp: Interpreter, value: ObjectValue, name: str, use: Callable[[Any], Any], args: Args = ()) -> Value:
    """What a built-in makes of what the class's special method gives: Python checks it, on a stand-in."""
    entry, owner = interp.lookup(value.cls, name)
    assert owner is not None
    returned = bind(interp, entry, owner, value, name).realize().call(interp, args, {}).realize()
    kind = returned.python_type()
    try:
        result = returned.as_constant()
    except NotConstant:
        if kind is _RESULTS.get(name):
            return returned  # a number that differs from call to call
        storage = returned.storage if isinstance(returned, ObjectValue) else None
        allowed = isinstance(storage, ConstantValue) and issubclass(kind, _RESULTS.get(name, ()))
        result = storage.as_constant() if storage and allowed else type(kind.__name__, (), {})()
    stand_in = type(value.cls.__name__, (), {name: lambda *_: result})()
    with interp.raising(TypeError, ValueError, OverflowError):
        return ConstantValue(use(stand_in))


def store_fields(emitter: ValueEmitter, owner: Value, fields: Mapping[str, Value]) -> None:
    """Give a new object its attributes, past any `__setattr__` of its class."""
    for name, value in fields.items():
        if value is not MISSING:
            _store(emitter, owner, name, partial(emitter.load, value))


def _store(emitter: ValueEmitter, owner: Value, name: str, load: Callable[[], None] | None) -> None:
    """Write an object's own attribute, or delete it (no `load`), past descriptors and methods of its class."""
    cls = owner.python_type()
    entry, _ = class_lookup(cls, name)
    if entry is not MISSING and not isinstance(entry, MEMBERS) and _is_data_descriptor(entry):
        if load is not None:
            load()
        emitter.load_call(object.__getattribute__, owner, "__dict__")
        emitter.load_const(name)
        (emitter.delete_subscr if load is None else emitter.store_subscr)()
    elif isinstance(class_lookup(cls, "__delattr__" if load is None else "__setattr__")[0], BUILTIN_METHODS):
        if load is not None:
            load()
        emitter.load(owner)
        (emitter.delete_attr if load is None else emitter.store_attr)(name)
    else:
        emitter.load_callable(object.__delattr__ if load is None else object.__setattr__)
        emitter.load(owner)
        emitter.load_const(name)
        if load is not None:
            load()
        emitter.call(2 if load is None else 3)
        emitter.pop()


def _fill(instance: ObjectValue, emitter: ValueEmitter, storage: DictValue | ListValue | SetValue) -> None:
    kind: Any = builtin_base(instance.cls)
    if isinstance(storage, DictValue):
        # OrderedDict.update calls the class's own __setitem__, which must not run again
        for key, value in storage.entries.values():
            emitter.run_call(kind.__setitem__, instance, key, value)
        return
    add = kind.extend if isinstance(storage, ListValue) else kind.update
    emitter.run_call(add, instance, TupleValue([*storage.children()]))


def _refuse(interp: Interpreter, cls: type, name: str, use: Callable[[Any], Any]) -> NoReturn:
    """Raise the user's AttributeError, in the words that this Python has for an instance without attributes."""
    if builtin_base(cls) is object:
        with interp.raising(AttributeError):
            use(object.__new__(cls))
    interp.raise_new(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}")


class InstanceDictValue(BuiltinValue):
    """`obj.__dict__`: reads and writes go to the object's own attributes."""

    __slots__ = ("owner",)
    cls = dict

    def __init__(self, owner: ObjectValue) -> None:
        self.source, self.owner = None if owner.source is None else InstanceDict(owner.source), owner

    def snapshot(self, interp: Interpreter) -> DictValue:
        """A dict of all own attributes as they are now."""
        owner = self.owner
        names = list(owner.fields)
        if owner.obj is not None:
            names = list(dict.fromkeys([*owner.obj.__dict__, *names]))
            if self.source is not None:
                interp.tracer.guards.keys(self.source, tuple(owner.obj.__dict__))
        return DictValue.of({name: value for name in names if (value := owner.own(interp, name)) is not MISSING})

    def get_item(self, interp: Interpreter, key: Value) -> Value:
        """An own attribute, or KeyError."""
        value = self.owner.own(interp, key.realize().as_constant())
        if value is MISSING:
            interp.raise_value(KeyError, [key])
        return value

    def set_item(self, interp: Interpreter, key: Value, value: Value) -> None:
        """Write an own attribute."""
        self.owner.store(interp, key.realize().as_constant(), value)

    def del_item(self, interp: Interpreter, key: Value) -> None:
        """Delete an own attribute, or KeyError."""
        self.get_item(interp, key)
        self.owner.forget(interp, key.realize().as_constant())

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """Names."""
        return self.snapshot(interp).iterate(interp)

    def length(self, interp: Interpreter) -> int:
        """Number of own attributes."""
        return self.snapshot(interp).length(interp)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Methods of dict, where they change or look for an attribute as those of mappings in Python do."""
        if name in CONTAINER_METHODS and name != "__len__":
            return CONTAINER_METHODS[name](interp, self, args, kwargs)
        if name in ("clear", "popitem", "__ior__", "__init__"):
            raise Break("unsupported-call", f"__dict__.{name}() of {self.owner.describe()}")
        if name in ("__contains__", "get", "pop", "setdefault", "update"):
            return interp.inline(interp.tracer.function(getattr(MutableMapping, name)), [self, *args], kwargs)
        return self.snapshot(interp).call_method(interp, name, args, kwargs)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Read it from the object."""
        emitter.load(self.owner)
        emitter.load_attr("__dict__")


def _is_data_descriptor(attribute: Any) -> bool:
    kind = type(attribute)
    return hasattr(kind, "__set__") or hasattr(kind, "__delete__")


def builtin_base(cls: type) -> type:
    """The first class of the MRO whose instances C code makes."""
    for base in cls.__mro__:
        if isinstance(base.__dict__.get("__new__"), types.BuiltinFunctionType) or not base.__flags__ & (1 << 9):
            return base
    return object
