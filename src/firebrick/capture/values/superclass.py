"""`super()`: attribute reads that start behind a class in the method resolution order."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.values.base import Value
from firebrick.capture.values.classes import ClassValue, fill
from firebrick.capture.values.constant import NONE
from firebrick.capture.values.exception import ExceptionValue
from firebrick.capture.values.function import BoundMethodValue, CallableValue
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.module import ModuleValue
from firebrick.capture.values.object import ObjectValue, bind

if TYPE_CHECKING:
    from firebrick.capture.values.base import Args, Interpreter, Kwargs


class SuperValue(Value):
    """`super(cls, owner)`."""

    __slots__ = ("cls", "owner")
    held = ("owner",)

    def __init__(self, cls: type, owner: Value) -> None:
        super().__init__(None)
        self.cls, self.owner = cls, owner

    def python_type(self) -> type:
        """Super."""
        return super

    def find(self, interp: Interpreter, name: str) -> tuple[Any, type] | None:
        """The raw attribute behind `cls`, and its owner; guarded in each class that is looked at."""
        owner = self.owner
        start = owner.python_type()
        if isinstance(owner, ClassValue) and issubclass(owner.obj, self.cls):
            start = owner.obj
        mro = start.__mro__
        for base in mro[mro.index(self.cls) + 1 :]:
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
        if isinstance(owner, ClassValue):
            return self._of_class(interp, raw, base, owner, name)
        if isinstance(owner, ModuleValue) and base is torch.nn.Module and name == "__setattr__":
            return _Raw(owner, "set")
        if isinstance(owner, ModuleValue) and base is torch.nn.Module and name == "__getattr__":
            return _Raw(owner, "get")
        if isinstance(owner, ObjectValue) and not isinstance(
            raw, (types.FunctionType, property, staticmethod, classmethod)
        ):
            if base is object and name in ("__setattr__", "__getattribute__", "__delattr__"):
                return BoundMethodValue(CallableValue(raw), owner)
            if isinstance(owner, ExceptionValue):
                return _Raw(owner, "raise") if name == "__init__" else MethodValue(owner, name)
            if name in ("__init__", "__init_subclass__"):
                return _Raw(owner, "init" if owner.storage is None else "fill")
            if owner.storage is not None and base is not object:
                return owner.storage_method(interp, name)
        return bind(interp, raw, base, owner, name)

    def _of_class(self, interp: Interpreter, raw: Any, base: type, owner: ClassValue, name: str) -> Value:
        if raw is type.__call__:
            return _Raw(owner, "construct")
        if name == "__new__" and not isinstance(raw, staticmethod):
            return CallableValue(base.__new__)
        return owner.method(interp, raw) or interp.tracer.known(getattr(super(self.cls, owner.obj), name))


class _Raw(Value):
    """A built-in method reached through `super()`."""

    __slots__ = ("kind", "owner")
    cls = types.MethodWrapperType

    def __init__(self, owner: Any, kind: str) -> None:
        super().__init__(None)
        self.owner, self.kind = owner, kind

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """Do what the built-in method does."""
        owner = self.owner
        match self.kind:
            case "construct":
                return owner.construct(interp, args, kwargs, plain=True)
            case "raise":
                if owner.obj is not None:
                    raise Break("unsupported-call", f"super().__init__() of {owner.describe()}")
                owner.initialize(interp, args, kwargs)
            case "set":
                owner.generic_set_attr(interp, args[0].realize().as_constant(), args[1])
            case "get":
                name = args[0].realize().as_constant()
                value = owner.own(interp, name)
                if not isinstance(value, Value):
                    interp.raise_new(AttributeError, f"{owner.cls.__name__!r} object has no attribute {name!r}")
                return value
            case "fill":
                fill(interp, owner.storage, args, kwargs)
        return NONE
