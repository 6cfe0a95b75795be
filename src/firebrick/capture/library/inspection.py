"""Rules for functions that ask about classes and functions: inspect, dataclasses, typing."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import pathlib
import re
import reprlib
import sys
import types
import typing
from typing import Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.breaks.continuation import origin
from firebrick.capture.library.known_callables import CODE_HANDLERS, TRANSPARENT, handles, handles_each, unwrapped
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value
from firebrick.capture.values.constant import NONE
from firebrick.capture.values.function import BoundMethodValue


def real_callable(value: Value) -> Any:
    """A real object with the signature of a value; raises Break: captured code made the function."""
    value = value.realize()
    if isinstance(value, BoundMethodValue):
        owner = value.owner.realize()
        return types.MethodType(real_callable(value.function), getattr(owner, "obj", None) or object())
    real = getattr(value, "obj", None)
    if real is not None:
        return real
    raise Break("unsupported-call", f"inspect.signature() of {value.describe()}")


TRANSPARENT.update(
    function
    for cls in (inspect.Signature, inspect.BoundArguments)
    for function in (*vars(cls).values(), *(entry.fget for entry in vars(cls).values() if isinstance(entry, property)))
    if isinstance(function, types.FunctionType)
)


@handles(json.dumps)
def _dumps(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if not kwargs.keys().isdisjoint(("cls", "default")):
        raise Break("unsupported-call", "json.dumps() with code of the program's")
    return interp.fold(json.dumps, args, kwargs, copied=True)


@handles(inspect.signature)
def _signature(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    with interp.raising(TypeError, ValueError):
        return interp.tracer.known(inspect.signature(real_callable(args[0])))


TRANSPARENT.update((inspect.isfunction, inspect.ismethod, inspect.isclass, inspect.isgeneratorfunction))
TRANSPARENT.update((inspect.iscoroutinefunction, inspect._has_code_flag))  # type: ignore[attr-defined]


@handles_each(
    *(importlib.util.find_spec, importlib.metadata.version, typing.get_type_hints),
    *(re.compile, re.match, re.search, re.fullmatch, re.split, re.findall, re.finditer, re.sub, re.subn, re.escape),
    *(functools.cache, logging.Logger.isEnabledFor, logging.getLogger),
    *(pathlib.Path, pathlib.PosixPath, pathlib.PurePath, pathlib.PurePosixPath, datetime.timedelta),
)
def _evaluated(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return interp.fold(function, args, kwargs)


_WRAPPERS: tuple[Any, ...] = (
    reprlib.recursive_repr()(lambda value: ""),
    getattr(dataclasses, "_recursive_repr", lambda function: function)(repr),
)
for _wrapper in _WRAPPERS:
    if hasattr(_wrapper, "__code__"):  # what looks out for objects that hold themselves; capture looks out for depth
        CODE_HANDLERS[_wrapper.__code__] = unwrapped

# -- frames --------------------------------------------------------------------------------------


class FrameValue(Value):
    """A frame of captured code, one of those of `inspect.stack`, or that list: what runs and was called is known."""

    __slots__ = ("cls", "frame")

    def __init__(self, frame: Interpreter | None, cls: Any = types.FrameType) -> None:
        if frame is None or origin(frame.code) or str(frame.globals.get("__name__")).startswith("firebrick."):
            raise Break("unsupported-call", "a frame is looked up that captured code does not have")
        self.frame, self.cls = frame, cls

    def back(self, steps: int, cls: Any = types.FrameType) -> FrameValue:
        """The frame that has called it, and so on."""
        return FrameValue(self.frame, cls) if not steps else FrameValue(self.frame.caller()).back(steps - 1, cls)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """What it runs, where it is, and its caller."""
        code, kind = self.frame.code, self.cls
        if name == "f_back" and kind is types.FrameType:
            return self.back(1)
        fields: Any = {"f_code": code, "f_lineno": self.frame.current.line} if kind is types.FrameType else {}
        fields = {"filename": code.co_filename, "function": code.co_name} if kind is inspect.FrameInfo else fields
        return interp.tracer.known(fields[name]) if name in fields else super().get_attr(interp, name)

    def get_item(self, interp: Interpreter, key: Value) -> Value:
        """A frame of the list, or its name among its fields."""
        place = interp.index_of(key)
        if self.cls is list and place >= 0:
            return self.back(place, inspect.FrameInfo)
        return self.get_attr(interp, "function" if place == 3 else "a field")


handles(sys._getframe)(lambda interp, args, kwargs: FrameValue(interp).back(interp.index_of(args[0]) if args else 0))
handles(inspect.stack)(lambda interp, args, kwargs: FrameValue(interp, list))
TRANSPARENT.add(inspect.currentframe)

# -- logging --------------------------------------------------------------------------------------

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "critical": 50, "exception": 40}


@handles_each(*(getattr(logging.Logger, name) for name in _LEVELS))
def _logs(method: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    logger, name = getattr(args[0].realize(), "obj", None), method.__name__
    if not isinstance(logger, logging.Logger):
        raise Break("unsupported-call", f"Logger.{name}() of a logger that is not known")
    if logger.isEnabledFor(_LEVELS[name]):
        if not all(arg.realize().is_constant() for arg in (*args[1:], *kwargs.values())):
            raise Break("unsupported-call", f"Logger.{name}() with a value that is not known")
        interp.tracer.effects.later(getattr(logger, name), args[1:], dict(kwargs))
    return NONE


handles(inspect.getfullargspec)(
    lambda interp, args, kwargs: interp.tracer.fresh(inspect.getfullargspec(real_callable(args[0])))
)
handles(inspect.unwrap)(lambda interp, args, kwargs: interp.tracer.known(inspect.unwrap(real_callable(args[0]))))
