"""Exceptions of the user's program as values."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.guards.sources import Const
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value, ValueEmitter
from firebrick.capture.values.constant import LITERAL_TYPES, NONE, ConstantValue
from firebrick.capture.values.object import ObjectValue, class_lookup, store_fields
from firebrick.capture.values.sequence import ListValue, TupleValue

_KEYWORDS = {ImportError: ("name", "path"), NameError: ("name",), AttributeError: ("name", "obj")}
"""Classes of exceptions that take keyword arguments -> these."""
_CHAINED = {
    "__cause__": "cause", "__context__": "context", "__suppress_context__": "suppress", "__traceback__": "traceback",
}  # fmt: skip


class TracebackValue(Value):
    """The traceback of an exception that was raised in captured code: it is there, and no more is known."""

    __slots__ = ()
    cls = types.TracebackType


class ExceptionValue(ObjectValue):
    """An exception that captured code made."""

    __slots__ = ("args", "cause", "context", "suppress", "traceback")

    def __init__(self, cls: type, args: list[Value], obj: BaseException | None = None) -> None:
        super().__init__(cls, obj, None if obj is None else Const(obj, cls.__name__), fixed=obj is not None)
        self.args = args
        self.cause: Value = NONE
        self.context: Value = NONE
        self.suppress: Value = ConstantValue(False)
        self.traceback: Value = NONE if obj is None or obj.__traceback__ is None else TracebackValue()

    @classmethod
    def of(cls, error: BaseException, args: list[Value]) -> ExceptionValue:
        """What a host operation raised, with the literals that it carries beside its arguments."""
        value = cls(type(error), args)
        for base in type(error).__mro__:
            for name, member in vars(base).items():
                if isinstance(member, types.MemberDescriptorType) and type(getattr(error, name)) in LITERAL_TYPES:
                    value.fields[name] = ConstantValue(getattr(error, name))
        return value

    def initialize(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> None:
        """The built-in `__init__`."""
        self.args = list(args)
        keywords = next((names for cls, names in _KEYWORDS.items() if issubclass(self.cls, cls)), ())
        for name, value in kwargs.items():
            if name not in keywords:
                interp.raise_new(TypeError, f"{self.cls.__name__}() takes no keyword arguments")
            self.fields[name] = value

    def generic_get_attr(self, interp: Interpreter, name: str) -> Value:
        """`args`, `value`, `__cause__`, `__context__`, then as for any object."""
        match name:
            case "args":
                return TupleValue(list(self.args))
            case "value" if issubclass(self.cls, StopIteration):
                return self.args[0] if self.args else NONE
            case "message" if issubclass(self.cls, BaseExceptionGroup):
                return self.args[0]
            case "exceptions" if issubclass(self.cls, BaseExceptionGroup):
                return TupleValue(list(interp.iterate(self.args[1])))
        if name in _CHAINED:
            return getattr(self, _CHAINED[name])
        return super().generic_get_attr(interp, name)

    def member(self, interp: Interpreter, entry: Any, name: str) -> Value:
        """What the built-in class keeps beside the arguments; None unless it was given."""
        if self.obj is None and name not in self.fields and entry.__objclass__.__module__ == "builtins":
            if isinstance(entry, types.GetSetDescriptorType) or issubclass(self.cls, (OSError, SyntaxError)):
                raise Break("unsupported-attribute", f"{name} of {self.describe()} is read")
            return NONE
        return super().member(interp, entry, name)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`add_note` and `with_traceback`, then as for any object."""
        if class_lookup(self.cls, name)[1] is BaseException:
            if name == "with_traceback":
                return self
            if name == "add_note":
                notes = self.fields.setdefault("__notes__", ListValue([]))
                notes.realize().call_method(interp, "append", args, {})
                return NONE
        return super().call_method(interp, name, args, kwargs)

    def store(self, interp: Interpreter, name: str, value: Value) -> None:
        """Chained exceptions, then own attributes."""
        if name == "args":
            self.args = list(interp.iterate(value))
        elif name in _CHAINED:
            setattr(self, _CHAINED[name], value)
            if name == "__cause__":
                self.suppress = ConstantValue(True)
        else:
            super().store(interp, name, value)

    def children(self) -> Sequence[Value]:
        """Arguments and attributes."""
        return [*self.args, self.cause, self.context, *super().children()]

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`cls.__new__(cls, *args)`, then attributes, cause and context."""
        emitter.load_call(self.cls.__new__, self.cls, *self.args)
        emitter.remember(self)
        extra: dict[str, Value] = {name: value for name, value in self.fields.items() if isinstance(name, str)}
        chained = {"__cause__": self.cause, "__context__": self.context}
        extra.update({name: error for name, error in chained.items() if error.realize() is not NONE})
        store_fields(emitter, self, {**extra, "__suppress_context__": self.suppress})
