"""Classes: attribute reads on them, the construction of instances, and `super()`."""

from __future__ import annotations

import enum
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.sources import Attr, ClassAttr
from firebrick.capture.library.known_callables import FOLDABLE_MODULES, find, is_known
from firebrick.capture.values.base import Args, Interpreter, KnownValue, Kwargs, Value
from firebrick.capture.values.constant import NONE, ConstantValue, is_literal
from firebrick.capture.values.exception import ExceptionValue
from firebrick.capture.values.function import BoundMethodValue, CallableValue, RawMethod
from firebrick.capture.values.mapping import DictValue, SetValue
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.module import ModuleValue, NewModuleValue
from firebrick.capture.values.object import MEMBERS, MISSING, ObjectValue, bind, builtin_base
from firebrick.capture.values.sequence import ListValue, TupleValue
from firebrick.capture.values.wrapper import is_wrapper_class, make_wrapper

LIBRARIES = ("builtins", "abc", "enum", "typing", "torch.autograd.function")
"""Modules whose metaclasses and bases see stand-ins while a class is made."""
_ABSTRACT, _IMMUTABLE = 1 << 20, 1 << 8  # Py_TPFLAGS_IS_ABSTRACT, Py_TPFLAGS_IMMUTABLETYPE


class ClassValue(KnownValue):
    """A class."""

    __slots__ = ()

    def describe(self) -> str:
        """Its name."""
        return f"class {self.obj.__qualname__}"

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Class attributes, methods unbound or bound to the class."""
        tracer = interp.tracer
        if name == "__members__" and issubclass(self.obj, enum.Enum):
            return ConstantValue(self.obj.__members__)
        meta, meta_owner = interp.lookup(type(self.obj), name)
        own = meta_owner is not type and meta_owner is not object
        if own and isinstance(meta, property) and meta.fget is not None:
            return tracer.known(meta.fget).call(interp, [self], {})
        entry, owner = interp.lookup(self.obj, name)
        if entry is MISSING or isinstance(entry, types.GetSetDescriptorType):
            if own and meta is not MISSING and meta_owner is not None:
                return bind(interp, meta, meta_owner, self, name)
            hook, owner = interp.lookup(type(self.obj), "__getattr__")
            if entry is MISSING and isinstance(hook, types.FunctionType) and name[:2] != "__":
                return tracer.function(hook).call(interp, [self, ConstantValue(name)], {})
            with interp.raising(AttributeError):
                attribute = getattr(self.obj, name)
            if is_literal(attribute):
                tracer.guards.equals(Attr(tracer.const_source(self.obj), name), attribute)
            elif name == "__dict__" and not self.obj.__flags__ & _IMMUTABLE:
                self._guard_entries(interp, attribute)
            return tracer.known(attribute)
        assert owner is not None
        method = self.method(interp, entry)
        if method is not None:
            return method
        if isinstance(entry, types.ClassMethodDescriptorType):
            if find(entry) is not None:
                return BoundMethodValue(CallableValue(entry), self)
            return CallableValue(getattr(self.obj, name))
        getter, _ = interp.lookup(type(entry), "__get__")
        if getter is MISSING or isinstance(entry, type):
            return tracer.class_value(owner, name, entry)
        if isinstance(getter, types.FunctionType) and not isinstance(entry, (property, enum.property)):
            return tracer.known(entry).call_method(interp, "__get__", [NONE, self], {})
        return tracer.known(getattr(self.obj, name))

    def _guard_entries(self, interp: Interpreter, entries: Mapping[str, Any]) -> None:
        """All that the class itself holds stays."""
        source, guards = interp.tracer.const_source(self.obj), interp.tracer.guards
        if any(holder is self.obj for holder, _ in interp.tracer.effects.assigned.values()):
            raise Break("unsupported-attribute", f"__dict__ of {self.describe()} is read, which has changed")
        guards.length(Attr(source, "__dict__"), len(entries))
        for name, entry in entries.items():
            if type(entry) not in MEMBERS:
                guards.fixed(ClassAttr(source, name), entry)

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """Data are written as an effect; what changes how the class works breaks."""
        cls, meta = self.obj, type(self.obj)
        kinds = (type(interp.lookup(cls, name)[0]), value.realize().python_type())
        plain = interp.lookup(meta, name)[1] is None and interp.lookup(meta, "__setattr__")[1] is type
        if (
            not plain
            or name[:2] == "__"
            or cls.__flags__ & _IMMUTABLE
            or any(hasattr(kind, "__get__") for kind in kinds)
        ):
            super().set_attr(interp, name, value)
        interp.tracer.effects.set_global(cls, name, value)

    def method(self, interp: Interpreter, entry: object) -> Value | None:
        """What a function, static method or class method among a class's entries is, read from this class."""
        if isinstance(entry, classmethod):
            return BoundMethodValue(interp.tracer.known(entry.__func__), self)
        if isinstance(entry, staticmethod):
            return interp.tracer.known(entry.__func__)
        return interp.tracer.function(entry) if isinstance(entry, types.FunctionType) else None

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """By the metaclass: members of an enum."""
        own = self._by_metaclass(interp, "__iter__")
        return super().iterate(interp) if own is None else interp.iterate(own)

    def length(self, interp: Interpreter) -> int:
        """By the metaclass: number of members of an enum."""
        own = self._by_metaclass(interp, "__len__")
        return super().length(interp) if own is None else interp.index_of(own)

    def _by_metaclass(self, interp: Interpreter, name: str, *args: Value) -> Value | None:
        entry, _ = interp.lookup(type(self.obj), name)
        is_function = isinstance(entry, types.FunctionType)
        return interp.call(interp.tracer.function(entry), self, *args) if is_function else None

    def get_item(self, interp: Interpreter, key: Value) -> Value:
        """`Enum["name"]`, a generic alias, or the metaclass's own."""
        own = self._by_metaclass(interp, "__getitem__", key)
        return own or interp.fold(lambda cls, index: cls[index], [self, key.realize()], {}, copied=True)

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """Make an instance."""
        if is_known(self.obj):
            return interp.call_known(self.obj, self, args, kwargs)
        if issubclass(self.obj, enum.Enum) or self.obj.__module__ in FOLDABLE_MODULES:
            return interp.fold(self.obj, args, kwargs)
        if is_wrapper_class(self.obj):
            return make_wrapper(interp, self.obj, args, kwargs)
        return self.construct(interp, args, kwargs)

    def construct(self, interp: Interpreter, args: Args, kwargs: Kwargs, *, plain: bool = False) -> Value:
        """`__new__` and `__init__`, or the metaclass's own `__call__` unless `plain`."""
        cls = self.obj
        if any("__del__" in vars(base) for base in cls.__mro__):
            raise Break("unsupported-call", f"{cls.__name__}() is called, whose objects see when they die")
        caller, owner = interp.lookup(type(cls), "__call__")
        if not plain and owner is not type and isinstance(caller, types.FunctionType):
            return interp.tracer.function(caller).call(interp, [self, *args], kwargs)
        if not plain and isinstance(caller, type):  # typing.TypedDict
            return interp.tracer.known(caller).call(interp, args, kwargs)
        if issubclass(cls, BaseException) and not isinstance(interp.lookup(cls, "__new__")[0], types.FunctionType):
            if cls is BaseExceptionGroup and all(
                interp.is_instance(item, Exception) for item in interp.iterate(args[1])
            ):
                cls = ExceptionGroup
            error = ExceptionValue(cls, list(args))
            if not isinstance(interp.lookup(cls, "__init__")[0], types.FunctionType):
                error.initialize(interp, args, kwargs)
            instance: Value = error
        else:
            instance = self.new(interp, args, kwargs).realize()
        kind = instance.python_type()
        if cls not in kind.__mro__:
            return instance
        initialize, owner = interp.lookup(kind, "__init__")
        if isinstance(initialize, types.FunctionType):
            interp.tracer.function(initialize).call(interp, [instance, *args], kwargs)
        elif isinstance(instance, ObjectValue) and instance.storage is not None:
            fill(interp, instance.storage, args, kwargs)
        elif initialize is not object.__init__ and not isinstance(instance, (ExceptionValue, TupleValue, ClassValue)):
            raise Break("unsupported-call", f"{self.describe()} is called")
        elif (args or kwargs) and interp.lookup(cls, "__new__")[1] is object:
            interp.raise_new(TypeError, f"{cls.__name__}() takes no arguments")
        return instance

    def new(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """`cls.__new__(cls, ...)`."""
        maker, _ = interp.lookup(self.obj, "__new__")
        if isinstance(maker, staticmethod):
            maker = maker.__func__
        if isinstance(maker, types.FunctionType) or maker is type.__new__:
            return interp.tracer.known(maker).call(interp, [self, *args], kwargs)
        return self.blank(interp, args)

    def blank(self, interp: Interpreter, args: Args) -> Value:
        """A new instance by the built-in `__new__` below the class."""
        cls = self.obj
        if cls.__flags__ & _ABSTRACT:
            with interp.raising(TypeError):
                object.__new__(cls)
        if issubclass(cls, torch.nn.Module):
            return NewModuleValue(cls)
        if issubclass(cls, torch.Tensor):
            raise Break("unsupported-call", f"an instance of {self.describe()} is made")
        base = builtin_base(cls)
        if base is object:
            return ObjectValue(cls)
        if base in (dict, OrderedDict, defaultdict, list, set):
            storage = ListValue([]) if base is list else SetValue({}) if base is set else DictValue({}, cls=base)
            return ObjectValue(cls, storage=storage)
        of_torch = cls.__module__ == "torch.return_types"
        if base is tuple or of_torch:
            items = list(interp.iterate(args[0])) if args else []
            if of_torch or (hasattr(cls, "_fields") and cls.__dict__.get("__slots__") == ()):
                return TupleValue(items, cls=cls)
            return ObjectValue(cls, storage=TupleValue(items))
        if base in (str, int, float) and all(arg.realize().is_constant() for arg in args):
            return ObjectValue(cls, storage=ConstantValue(base(*[arg.realize().as_constant() for arg in args])))
        if issubclass(cls, BaseException):
            return ExceptionValue(cls, list(args))
        raise Break("unsupported-call", f"{self.describe()} is called")


def fill(interp: Interpreter, storage: Value, args: Args, kwargs: Kwargs) -> None:
    """What `__init__` of a built-in container does."""
    if isinstance(storage, DictValue):
        if storage.cls is defaultdict and args:
            storage.factory, args = args[0], args[1:]
        storage.call_method(interp, "update", args, kwargs)
    elif isinstance(storage, (ListValue, SetValue)) and args:
        storage.call_method(interp, "extend" if isinstance(storage, ListValue) else "update", args, {})


class SuperValue(Value):
    """`super(cls, owner)`."""

    __slots__ = ("above", "owner")
    held = ("owner",)
    cls = super

    def __init__(self, above: type, owner: Value) -> None:
        self.above, self.owner = above, owner

    def find(self, interp: Interpreter, name: str) -> tuple[Any, type] | None:
        """The raw attribute behind it, and its owner; guarded in each class that is looked at."""
        owner = self.owner
        start = owner.python_type()
        if isinstance(owner, ClassValue) and issubclass(owner.obj, self.above):
            start = owner.obj
        mro = start.__mro__
        for base in mro[mro.index(self.above) + 1 :]:
            entry, holder = interp.lookup(base, name)
            if holder is base:
                return entry, base
        return None

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """The attribute, bound to the owner."""
        entry = self.find(interp, name)
        if entry is None and name in vars(super):
            raise Break("unsupported-attribute", f"{name} of a super object is read")
        if entry is None:
            interp.raise_new(AttributeError, f"'super' object has no attribute {name!r}")
        raw, base = entry
        owner = self.owner
        if isinstance(owner, ClassValue) and issubclass(owner.obj, self.above):
            return self._of_class(interp, raw, base, owner, name)
        if isinstance(owner, ModuleValue) and base is torch.nn.Module and name == "__setattr__":
            return RawMethod(
                lambda interp, args, _: owner.generic_set_attr(interp, args[0].realize().as_constant(), args[1])
            )
        if isinstance(owner, ModuleValue) and base is torch.nn.Module and name == "__getattr__":
            return RawMethod(partial(_table_entry, owner))
        if isinstance(owner, ObjectValue) and not isinstance(
            raw, (types.FunctionType, property, staticmethod, classmethod)
        ):
            if base is object and name in ("__setattr__", "__getattribute__", "__delattr__"):
                return BoundMethodValue(CallableValue(raw), owner)
            if isinstance(owner, ExceptionValue):
                if name == "__init__" and owner.obj is not None:
                    raise Break("unsupported-call", f"super().__init__() of {owner.describe()}")
                return RawMethod(owner.initialize) if name == "__init__" else MethodValue(owner, name)
            if name in ("__init__", "__init_subclass__"):
                storage = owner.storage
                return RawMethod(lambda interp, args, kw: None if storage is None else fill(interp, storage, args, kw))
            if owner.storage is not None and base is not object:
                return owner.storage_method(interp, name)
        return bind(interp, raw, base, owner, name)

    def _of_class(self, interp: Interpreter, raw: Any, base: type, owner: ClassValue, name: str) -> Value:
        if name == "__init_subclass__" and base.__module__ in LIBRARIES and hasattr(owner, "told"):
            return RawMethod(partial(owner.told, base))
        if isinstance(raw, types.ClassMethodDescriptorType) and find(raw) is not None:
            return BoundMethodValue(CallableValue(raw), owner)
        if name == "__new__" and not isinstance(raw, staticmethod):
            return CallableValue(base.__new__)
        method = owner.method(interp, raw)
        return method or interp.tracer.known(getattr(super(self.above, owner.obj), name))


def _table_entry(module: ModuleValue, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = module.own(interp, name := args[0].realize().as_constant())
    if not isinstance(value, Value):
        interp.raise_new(AttributeError, f"{module.cls.__name__!r} object has no attribute {name!r}")
    return value
