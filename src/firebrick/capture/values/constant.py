"""Constants: objects that are known now, can't change, and are equal wherever they are equal once."""

from __future__ import annotations

import inspect
import math
import string
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PosixPath, PurePath
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break, breaks
from firebrick.capture.library.known_callables import TRANSPARENT
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Source, UnknownValue, Value, ValueEmitter
from firebrick.capture.values.method import MethodValue

LITERAL_TYPES: frozenset[type] = frozenset(
    (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented))
    + (torch.dtype, torch.device, torch.layout, torch.memory_format)
)
"""Exact types whose objects are guarded by equality."""


def is_literal(obj: object) -> bool:
    """Whether `obj` is of a literal type, or a tuple, frozenset, range or slice of literals."""
    kind = type(obj)
    if kind in LITERAL_TYPES:
        return True
    if kind is tuple or kind is frozenset:
        return all(is_literal(item) for item in obj)  # type: ignore[attr-defined]
    return kind is range


def is_none(value: Value) -> bool:
    """Whether a value is None."""
    return value.realize().python_type() is type(None)


class ConstantValue(Value):
    """A literal, or an object of a class whose instances never change."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        self.source, self.value = source, value

    def python_type(self) -> type:
        """Class of the literal."""
        return type(self.value)

    def is_constant(self) -> bool:
        """Literals are."""
        return True

    def as_constant(self) -> Any:
        """The literal."""
        return self.value

    as_argument = as_constant  # literals stand for themselves in a graph

    def identity(self) -> object:
        """Small constants are taken as identical where CPython would share them."""
        value = self.value
        if type(value) not in LITERAL_TYPES:
            return value
        return (type(value), value) if not (isinstance(value, float) and math.isnan(value)) else self

    def describe(self) -> str:
        """Its text."""
        text = repr(self.value)
        return text if len(text) <= 60 else text[:57] + "..."

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Attributes are evaluated now, methods are bound."""
        with interp.raising(AttributeError):
            attribute = getattr(self.value, name)
        if inspect.isroutine(attribute):
            return MethodValue(self, name)
        return interp.tracer.known(attribute)

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """Constants are not called."""
        if not callable(self.value):
            interp.raise_new(TypeError, f"{type(self.value).__name__!r} object is not callable")
        return super().call(interp, args, kwargs)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Methods on constant arguments are evaluated now."""
        method = getattr(self.value, name, None)
        if method is None:
            return super().call_method(interp, name, args, kwargs)
        handler = CONSTANT_METHODS.get((type(self.value), name))
        if handler is not None:
            return handler(interp, self, args, kwargs)
        function = getattr(method, "__func__", None)
        if isinstance(function, types.FunctionType) and function in TRANSPARENT:
            return interp.inline(interp.tracer.function(function), [self, *args], kwargs)
        return interp.fold(method, args, kwargs, copied=type(self.value) in LITERAL_TYPES)

    def get_item(self, interp: Interpreter, key: Value) -> Value:
        """Evaluated now."""
        return interp.fold(lambda value, index: value[index], [self, key.realize()], {}, copied=True)

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """Elements of text, bytes, ranges and frozensets."""
        with interp.raising(TypeError):
            items = iter(self.value)
        known = interp.tracer.known
        return (known(item) for item in items)

    def length(self, interp: Interpreter) -> int:
        """Evaluated now."""
        with interp.raising(TypeError):
            return len(self.value)

    def truth(self, interp: Interpreter) -> bool:
        """Evaluated now."""
        return bool(self.value)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Load the literal."""
        emitter.load_const(self.value)

    def __repr__(self) -> str:
        return f"ConstantValue({self.value!r})"


class OpenValue(ConstantValue):
    """A constant that is known, and guarded, only where someone needs it: asked for its `value`."""

    __slots__ = ()
    python_type = Value.python_type
    is_constant = UnknownValue.is_constant  # not until someone needs it

    def describe(self) -> str:
        """What it is."""
        return f"another {self.cls.__name__} in each call"


class NumpyScalarValue(ConstantValue):
    """A scalar of numpy, which torch takes for the Python number that it is equal to."""

    __slots__ = ()

    def as_argument(self) -> Any:
        """The number."""
        return self.value.item()


def _join(interp: Interpreter, value: ConstantValue, args: Args, kwargs: Kwargs) -> Value:
    parts = [part.realize() for part in interp.iterate(args[0])]
    return interp.fold(lambda *texts: value.value.join(texts), parts, {})


def _format(interp: Interpreter, value: ConstantValue, args: Args, kwargs: Kwargs) -> Value:
    try:
        return interp.fold(value.value.format, args, kwargs, copied=True)
    except Break:
        fields = [field for field in string.Formatter().parse(value.value) if field[1] is not None]
        if any(
            spec or conversion == "r" or not (name or "0").replace("_", "0").isalnum()
            for _, name, spec, conversion in fields
        ):
            raise
    shown = [interp.formatted(arg, "", "") for arg in args]
    named = {name: interp.formatted(arg, "", "") for name, arg in kwargs.items()}
    return interp.fold(value.value.format, shown, named)


def _view(name: str, interp: Interpreter, value: ConstantValue, args: Args, kwargs: Kwargs) -> Value:
    return interp.fold(lambda: tuple(getattr(value.value, name)()), args, kwargs)


_OF_DISK = {*dir(Path)} - {*dir(PurePath)}
CONSTANT_METHODS: dict[tuple[type, str], Any] = {
    (str, "join"): _join,
    (bytes, "join"): _join,
    (str, "format"): _format,
    **{(types.MappingProxyType, name): partial(_view, name) for name in ("keys", "values", "items")},
    **{(PosixPath, name): breaks("unsupported-call", f"{name}() of a path asks the disk") for name in _OF_DISK},
}
"""Methods that take containers or any object, so that plain evaluation is not enough."""

NONE = ConstantValue(None)
"""None, not read from anywhere."""
