"""Whether compiled functions of this thread run as usual, use only what exists, or run as plain Python."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from firebrick.capture import hook
from firebrick.capture.stance import DEFAULT, STANCES, Stance, current, set_own
from firebrick.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
Forced = Callable[[Any, Callable[..., Any]], Callable[..., Any]]

OFF, RUN_ONLY, OUTER = "off", "run only", "outer"
"""Modes: compile nothing, use what was compiled, and leave compiled functions to the hook that is set around them."""

_local = threading.local()
_lock = threading.Lock()


class _Blocks:
    """How many blocks and stances are open in all threads: 0 lets compiled calls skip the question."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = 0


blocks = _Blocks()


loaded = sys.modules
"""Compiled calls look here for torch's front end, whose stance they then ask for."""


def call_switched(
    original: Callable[..., Any],
    call: Callable[..., Any],
    forced: Forced,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a compiled function as this thread's innermost block wants: `original` plain, or `call` compiled.

    Without a block the stance decides: `forced` gives the function compiled by a backend.
    """
    modes = getattr(_local, "modes", None)
    if modes:
        with _MODES[modes[-1]]():
            return original(*args, **kwargs)
    stance = current()
    if stance.name == "force_eager":
        with hook.disabled():
            return original(*args, **kwargs)
    return (call if stance.backend is None else forced(stance.backend, original))(*args, **kwargs)


def later(fn: Any) -> Any:
    """A copy of a function whose body runs after the call, as of coroutines and generators; None for others.

    It runs as plain Python, and `inspect` tells its kind.
    """
    function = fn.__func__ if inspect.ismethod(fn) else fn
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if not inspect.isfunction(function) or not any(kind(function) for kind in kinds):
        return None
    if function is not fn:
        return functools.update_wrapper(functools.partial(function, fn.__self__), fn)
    parts = (function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    copy: Any = functools.update_wrapper(types.FunctionType(*parts), function)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


_MODES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    OFF: hook.disabled,
    RUN_ONLY: functools.partial(hook.installed, hook.RUN_ONLY),
    OUTER: nullcontext,
}


class Switch:
    """A context manager that sets the mode of its thread; also a decorator."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._hooks: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        with _lock:
            blocks.open += 1
        _local.modes = [*getattr(_local, "modes", ()), self._mode]
        block = _MODES[self._mode]()
        block.__enter__()
        self._hooks.append(block)

    def __exit__(self, *error: object) -> None:
        self._hooks.pop().__exit__(None, None, None)
        _local.modes = _local.modes[:-1]
        with _lock:
            blocks.open -= 1

    def __call__(self, fn: F) -> F:
        """Return `fn` in this mode."""
        mode = self._mode
        plain = later(fn)
        if plain is not None:
            return plain  # type: ignore[no-any-return]

        @functools.wraps(fn)
        def switched(*args: Any, **kwargs: Any) -> Any:
            with Switch(mode):
                return fn(*args, **kwargs)

        if mode == RUN_ONLY:  # in captured code the function is part of the caller's graph
            switched._torchdynamo_inline = fn  # type: ignore[attr-defined]
        return switched  # type: ignore[return-value]


class set_stance:
    """Say what compiled functions do at calls, in all threads, from here on; also a context manager and a decorator.

    Args:
        stance: "default"; "force_eager": run plain; "eager_on_recompile": plain where nothing that was compiled fits;
            "fail_on_recompile": raise `RecompileError` there; "eager_then_compile": plain at the first call, which
            also tells what varies; "aot_eager_then_compile": the same.
        force_backend: what the default stance compiles with, whatever functions were compiled for.

    Raises:
        ConfigError: an unknown stance, or a backend for another than the default.

    Example:
        with firebrick.set_stance("fail_on_recompile"):
            model(x)
    """

    def __init__(self, stance: str = "default", *, force_backend: Any = None) -> None:
        if stance not in STANCES:
            raise ConfigError(f"unknown stance {stance!r}", fix=f"use one of {', '.join(STANCES)}")
        if force_backend is not None and stance != "default":
            raise ConfigError(f"the stance {stance} takes no backend", fix="leave out force_backend")
        self._stance = DEFAULT if stance == "default" and force_backend is None else Stance(stance, force_backend)
        self._before = _take(self._stance)

    def __enter__(self) -> None:
        _take(self._stance)

    def __exit__(self, *error: object) -> None:
        _take(self._before)

    def __call__(self, fn: F) -> F:
        """Return `fn` with this stance while it runs."""
        _take(self._before)
        stance = self._stance

        @functools.wraps(fn)
        def with_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(stance.name, force_backend=stance.backend):
                return fn(*args, **kwargs)

        with_stance._dynamo_forbidden = True  # type: ignore[attr-defined]
        return with_stance  # type: ignore[return-value]


set_stance._dynamo_forbidden = True  # type: ignore[attr-defined]


def _take(stance: Stance) -> Stance:
    with _lock:
        before = set_own(stance)
        blocks.open += (stance is not DEFAULT) - (before is not DEFAULT)
    return before
