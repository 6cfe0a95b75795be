"""Exceptions of the user's program as values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firebrick.capture.sources import Const
from firebrick.capture.values.constant import NONE
from firebrick.capture.values.object import ObjectValue
from firebrick.capture.values.sequence import TupleValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firebrick.capture.interpreter import Interpreter
    from firebrick.capture.materialize import ValueEmitter
    from firebrick.capture.values.base import Value

__all__ = ["ExceptionValue"]

_KNOWN = ("__cause__", "__context__", "__suppress_context__", "__traceback__", "__notes__")


class ExceptionValue(ObjectValue):
    """An exception that captured code made."""

    __slots__ = ("args", "cause", "context")

    def __init__(self, cls: type, args: list[Value], obj: BaseException | None = None) -> None:
        super().__init__(cls, obj, None if obj is None else Const(obj, cls.__name__), fixed=obj is not None)
        self.args = args
        self.cause: Value = NONE
        self.context: Value = NONE

    def generic_get_attr(self, interp: Interpreter, name: str) -> Value:
        """`args`, `value`, `__cause__`, `__context__`, then as for any object."""
        match name:
            case "args":
                return TupleValue(list(self.args))
            case "value" if issubclass(self.cls, StopIteration):
                return self.args[0] if self.args else NONE
            case "__cause__":
                return self.cause
            case "__context__":
                return self.context
            case "__traceback__":
                return NONE
        return super().generic_get_attr(interp, name)

    def store(self, interp: Interpreter, name: str, value: Value) -> None:
        """Chained exceptions, then own attributes."""
        if name == "__cause__":
            self.cause = value
        elif name == "__context__":
            self.context = value
        elif name == "args":
            self.args = list(interp.iterate(value))
        elif name not in _KNOWN:
            super().store(interp, name, value)

    def as_constant(self) -> Any:
        """Exceptions have identity."""
        return super().as_constant()

    def children(self) -> Sequence[Value]:
        """Arguments and attributes."""
        return [*self.args, *super().children()]

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`cls.__new__(cls, *args)`, then attributes and cause."""
        emitter.load_callable(self.cls.__new__)
        emitter.load_const(self.cls)
        for arg in self.args:
            emitter.load(arg)
        emitter.call(1 + len(self.args))
        emitter.remember(self)
        chain = {"__cause__": self.cause, "__context__": self.context}
        for name, value in [*self.fields.items(), *((k, v) for k, v in chain.items() if v is not NONE)]:
            emitter.dup()
            emitter.load(value)
            emitter.swap(2)
            emitter.store_attr(name)
