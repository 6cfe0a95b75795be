"""Frames that are not captured themselves, but whose callees must not be either."""

from __future__ import annotations

import importlib
import inspect
import itertools
import types
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint

from firebrick import _native
from firebrick.capture.emit.writer import Emitter
from firebrick.capture.guards.guard_kinds import Guard
from firebrick.capture.guards.guard_plan import build_plan
from firebrick.capture.guards.sources import Local
from firebrick.capture.hook import SKIP, Wrapped
from firebrick.capture.marks import disabled_by_torch

if TYPE_CHECKING:
    from firebrick._native import Frame

_CHECKPOINT = inspect.unwrap(torch.utils.checkpoint.checkpoint).__code__
_AGAIN = inspect.unwrap(getattr(torch.utils.checkpoint, "_run_fn_with_dynamo_disabled", lambda: None)).__code__
_IMPORT = importlib._bootstrap._find_and_load.__code__  # type: ignore[attr-defined]


def run_plain(frame: Frame) -> Any:
    """What to do with a library's function: an import or `torch.compiler.disable` gets code that captures nothing."""
    code, disabled = frame.code, disabled_by_torch(frame.function)
    if code is _IMPORT:
        return _calling(code, frame.function, code.co_varnames[: code.co_argcount])
    if code is _CHECKPOINT:
        return _run_all_plain(frame, "use_reentrant")
    if code is _AGAIN:  # the function of a checkpoint, in a backward that captured code calls
        return _calling(code, _call, code.co_varnames[:3])
    if disabled is None or "fn" not in code.co_freevars or code.co_varnames[:2] != ("args", "kwargs"):
        marked = "_torchdynamo_disable" in frame.function.__dict__  # other wrappers share the code
        return None if marked else SKIP
    original, with_callees = disabled
    if not with_callees:
        if isinstance(original, types.FunctionType):
            _native.skip_code(original.__code__)
        return None
    return _calling(code, _call, ("fn", "args", "kwargs"))


def _calling(code: CodeType, function: Any, names: Sequence[str], guards: Sequence[Guard] = ()) -> Any:
    """Code that calls a function with variables of the frame and captures nothing in it."""
    emitter = Emitter(code)
    emitter.prologue()
    emitter.load_callable(Wrapped(function, None))
    for name in names:
        if name in code.co_freevars:
            emitter.load_deref(name)
        else:
            emitter.load_fast(name)
    emitter.call(len(names))
    emitter.return_value()
    return build_plan(guards, code), emitter.assemble()


def _run_all_plain(frame: Frame, unless: str) -> Any:
    """Code that calls a function again with nothing captured in it, unless its argument `unless` is true.

    A checkpoint runs its function again in the backward, where nothing is captured either (`_AGAIN`), and must find
    the same saved tensors; a reentrant one does not.
    """
    code = frame.code
    if frame.locals[unless] is not False:
        return None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    guard = Guard("EQUALS", Local(unless), False)
    return _calling(code, partial(_call_again, frame.function), names, [guard])


def _call_again(function: types.FunctionType, *values: Any) -> Any:
    """Call a function that takes `*args` and `**kwargs` with what a frame of it was given."""
    code = function.__code__
    *parameters, args, kwargs = values
    named = zip(code.co_varnames[code.co_argcount :], parameters[code.co_argcount :], strict=False)
    return function(*parameters[: code.co_argcount], *args, **dict(named), **kwargs)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def may_have_tensors(frame: Frame) -> bool:
    """Whether a frame that broke before it computed anything is worth going on with."""
    if any(_is_about_tensors(value, 2) for value in frame.locals.values()):
        return True
    names = (frame.globals.get(name) for name in frame.code.co_names)
    return any(_is_about_tensors(value, 0) for value in names)


def _is_about_tensors(value: Any, depth: int) -> bool:
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return True
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] == "torch"
    if depth and isinstance(value, (tuple, list)):
        read: Any = tuple.__getitem__ if isinstance(value, tuple) else list.__getitem__  # no code of a derived class
        return any(_is_about_tensors(item, depth - 1) for item in read(value, slice(16)))
    if depth and isinstance(value, dict):
        return any(_is_about_tensors(item, depth - 1) for item in itertools.islice(dict.values(value), 16))
    module = None if depth else _stored(value, "__module__")
    if isinstance(module, str):
        return module.startswith("torch")
    own = _stored(value, "__dict__") if depth else None
    return isinstance(own, dict) and any(_is_about_tensors(item, depth - 1) for item in list(own.values())[:32])


def _stored(value: Any, name: str) -> Any:
    """An attribute, without running the class's own code that looks for it."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None
