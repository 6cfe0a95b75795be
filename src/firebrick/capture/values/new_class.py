"""Classes that captured code makes, and what class bodies are made of: properties, static methods, fields.

While code is captured, a real class stands in, whose functions refuse to run and whose other values are known to the
tracer; so lookups, bases and metaclasses are Python's own. Where the class leaves, it is made anew, at each call.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.values.base import Args, Interpreter, KnownValue, Kwargs, Value, ValueEmitter
from firebrick.capture.values.classes import ClassValue
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.function import CellValue, FunctionValue
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.object import MISSING, ObjectValue, is_odd_method


def _refuse(*_: Any) -> None:
    raise


_HOOKS = ("__set_name__", "__get__", "__set__", "__delete__")  # of descriptors


class _StandIn:
    """Stands for a value among a class's entries."""


def make_class(name: str, bases: tuple[Any, ...], keywords: dict[str, Any], entries: dict[str, Any]) -> Any:
    """A class as a `class` statement makes it; called by compiled code too."""

    def fill(namespace: dict[str, Any]) -> None:
        for key, entry in entries.items():
            namespace[key] = entry

    return types.new_class(name, bases, keywords, fill)


def stand_in(interp: Interpreter, value: Value) -> Any:
    """A host object by which the tracer knows what a class holds; raises Break: it is a descriptor, or named."""
    value, tracer = value.realize(), interp.tracer
    if isinstance(value, FunctionValue) and value.obj is None:
        host: Any = _function(value)
    else:
        kind = value.python_type()
        entries = {} if isinstance(value, BuiltValue) else {name: interp.lookup(kind, name)[0] for name in _HOOKS}
        hooks = [name for name, entry in entries.items() if entry is not MISSING and kind is not types.FunctionType]
        if not all(isinstance(value, ObjectValue) and isinstance(entries[name], types.FunctionType) for name in hooks):
            raise Break("unsupported-instruction", f"a class is made that holds {value.describe()}")
        if not hooks and value.is_constant():
            return value.as_constant()
        host = type("_StandIn", (_StandIn,), {hook: _refuse for hook in hooks if hook != "__set_name__"})()
    tracer.stand_ins[id(host)] = value
    tracer.remember(host, value)
    return host


def _function(value: FunctionValue) -> types.FunctionType:
    code = value.code
    refusing = code.replace(co_code=_refuse.__code__.co_code, co_exceptiontable=b"", co_linetable=b"")
    host = value.host(refusing)
    for name, (_, attribute) in value.own.entries.items():
        if attribute.is_constant():
            setattr(host, str(name), attribute.realize().as_constant())
    return host


class BuiltValue(KnownValue):
    """What a built-in function makes of functions and constants: a property, a static method, a field."""

    __slots__ = ("args", "function", "kwargs")
    held = ("args", "kwargs")

    def __init__(self, obj: Any, function: Any, args: Args, kwargs: Kwargs) -> None:
        super().__init__(obj)
        self.function, self.args, self.kwargs = function, args, kwargs

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """What it holds, or a method."""
        attribute = getattr(self.obj, name, None)
        if isinstance(attribute, types.BuiltinMethodType):
            return MethodValue(self, name)
        return super().get_attr(interp, name) if attribute is None else interp.tracer.known(attribute)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`property.setter` and its kin."""
        return build(getattr(type(self.obj), name), interp, [self, *args], kwargs)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Make it again."""
        emitter.load_call(self.function, *self.args, *self.kwargs.values(), keywords=tuple(self.kwargs))


def run(interp: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
    """What a function that makes or changes a class gives for stand-ins; raises Break: it would run the program."""
    try:
        hosts = [stand_in(interp, arg) for arg in args]
        return function(*hosts, **{name: stand_in(interp, arg) for name, arg in kwargs.items()})
    except (TypeError, ValueError, AttributeError) as error:
        interp.raise_real(error)
    except RuntimeError as error:
        raise Break("unsupported-instruction", f"a class is made by code of the program's: {error}") from None


def build(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """The rule of functions that make parts of classes."""
    host = run(interp, function, args, kwargs)
    value = BuiltValue(host, function, args, kwargs)
    interp.tracer.stand_ins[id(host)] = value
    interp.tracer.remember(host, value)
    return value


class NewClassValue(ClassValue):
    """A class that captured code has made; `steps` are calls with it that have changed it since."""

    __slots__ = ("bases", "cells", "changes", "entries", "keywords", "seen", "steps")
    held = ("bases", "keywords", "entries", "changes")

    def __init__(self, obj: type, bases: list[Value], keywords: Kwargs, entries: Mapping[str, Value]) -> None:
        super().__init__(obj)
        self.bases, self.keywords, self.entries = bases, keywords, entries
        self.cells: list[CellValue] | None = None  # those that hold it, while it is made
        self.steps: list[tuple[Any, Args, Kwargs]] = []
        self.changes: list[Value] = []  # arguments of these
        self.seen = False  # by code of the program's while it was made

    def identity(self) -> object:
        """This value: the class is another one at each call."""
        return self

    def set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """As Python does, now and where the class leaves."""
        if (name[:2] == "__" and name in vars(type)) or interp.lookup(type(self.obj), "__setattr__")[1] is not type:
            raise Break("unsupported-attribute", f"{name} of {self.describe()} is set")
        self.change(interp, setattr, [ConstantValue(name), value], {})

    def change(self, interp: Interpreter, function: Callable[..., Any], args: Args, kwargs: Kwargs) -> None:
        """Call a function that changes the class, with it and other arguments."""
        interp.tracer.effects.count += 1
        run(interp, functools.partial(function, self.obj), args, kwargs)
        self.steps.append((function, args, kwargs))
        self.changes += [*args, *kwargs.values()]
        self.register(interp)

    def register(self, interp: Interpreter) -> None:
        """Let the tracer know what belongs to the class and has to be loaded from it."""
        new_objects, given = interp.tracer.graph.new_objects, {id(v.obj) for v in self.children() if hasattr(v, "obj")}
        given.update(interp.tracer.stand_ins)
        for name, entry in vars(self.obj).items():
            if is_odd_method(self.obj, name, entry):
                raise Break("unsupported-call", f"{name} of {self.obj.__name__} is a {type(entry).__name__}")
            if isinstance(entry, types.FunctionType) and id(entry) not in given:
                new_objects.setdefault(id(entry), MethodValue(self, name))
        members: Mapping[str, Any] = self.obj.__members__ if isinstance(self.obj, enum.EnumMeta) else {}
        new_objects.update({id(member): MethodValue(self, name) for name, member in members.items()})

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Make it, then change it as it was; cells that hold it are filled behind it."""
        if self.cells is not None or self.seen:
            how = "code of the program saw being made" if self.seen else "holds itself"
            raise Break("no-reconstruction", f"{self.describe()}, which {how}, leaves the captured code")
        functions = [entry for entry in self.entries.values() if isinstance(entry, FunctionValue)]
        cells = [c for function in functions for c in function.closure if c.content is self and c.source is None]
        self.cells = [*dict.fromkeys(cells)]
        for cell in self.cells:
            cell.content = None
        emitter.load_callable(make_class)
        emitter.load_const(self.obj.__name__)
        emitter.load_tuple(self.bases)
        for table in (self.keywords, self.entries):
            emitter.load_map([(ConstantValue(name), item) for name, item in table.items()])
        emitter.call(4)
        emitter.remember(self)
        for cell in self.cells:
            cell.content = self
            emitter.load(self)
            emitter.load(cell)
            emitter.store_attr("cell_contents")
        self.cells = None
        for function, args, kwargs in self.steps:
            emitter.load_call(function, self, *args, *kwargs.values(), keywords=tuple(kwargs))
            emitter.pop()
