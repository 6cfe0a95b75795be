"""The frame hook's face in Python: setting callbacks, per thread, and looking after entries.

API (`firebrick._native`):
    set_callback(callback, scope=None) -> (callback, scope)   what was set; callback None is off, RUN_ONLY uses entries
                                                              and asks nobody (scope None: entries of every scope)
    callback(frame: Frame) -> None | SKIP | SKIP_SCOPE | (plan, code)
        asked when a Python function is called for which no entry of the scope holds. None: run as it is this time.
        SKIP: never ask about this code again. SKIP_SCOPE: nor this scope. (plan, code): add an entry, use it.
        An exception reaches the caller of the function. While a callback runs, its thread captures nothing.
    Frame: code, function, globals, builtins, closure (tuple of cells or None), locals (arguments by name, *args and
        **kwargs as they are). Frame(function, values) makes one from values in the order of the argument slots.
    The compiled code has the argument slots and free variables of the original; flags for *args and **kwargs may
        stay, the hook clears them in a copy, since it hands over the tuple and the dict as plain arguments. It runs
        with the globals, builtins and closure of the call. Its own frame is never offered, the functions it calls are.
    entries(code=None) -> list[Entry]; Entry: plan, code, scope, hits, original, remove(). add_entry(code, plan,
        compiled, scope=None), skip_code(code), reset().
    installed(callback, scope=None): a context that sets the callback for its thread and restores what was set.
    Wrapped(function, callback, scope=None): a callable that does so while it runs; both are native and offer no frames.

A scope is any object, compared by identity and held weakly where its class allows: when it dies its entries go.
Entries go as well with the code object they belong to and with any object that their plan knows by identity.
Plans come from `capture.plan.build_plan(guards, code)`.
"""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType
from typing import Any

from firebrick import _native
from firebrick._native import RUN_ONLY as RUN_ONLY
from firebrick._native import SKIP as SKIP
from firebrick._native import SKIP_SCOPE as SKIP_SCOPE
from firebrick._native import Entry, Frame
from firebrick._native import Wrapped as Wrapped
from firebrick._native import installed as installed


class Scope:
    """What the entries of one compiled function or module belong to."""

    __slots__ = ("__weakref__",)


def disabled() -> installed:
    """Run all frames as they are."""
    return installed(None)


def entries(code: CodeType | None = None) -> list[Entry]:
    """The entries of one code object, or of all."""
    return _native.entries() if code is None else _native.entries(code)


def reset() -> None:
    """Remove all entries and marks; functions that are running finish."""
    _native.reset()


def bind(function: FunctionType, *args: Any, **kwargs: Any) -> Frame:
    """The frame that `function(*args, **kwargs)` would start; raises TypeError: the arguments don't fit."""
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    code = function.__code__
    slots = code.co_argcount + code.co_kwonlyargcount
    slots += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return Frame(function, tuple(bound.arguments[name] for name in code.co_varnames[:slots]))
