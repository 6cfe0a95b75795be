"""Whether compiled functions of this thread run as usual, use only what exists, or run as plain Python."""

from __future__ import annotations

import functools
import inspect
import threading
import types
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from firebrick.capture import hook

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    F = TypeVar("F", bound=Callable[..., Any])

OFF, RUN_ONLY, OUTER = "off", "run only", "outer"
"""Modes: compile nothing, use what was compiled, and leave compiled functions to the hook that is set around them."""

_local = threading.local()
_lock = threading.Lock()


class _Blocks:
    """How many blocks of `run` and `disable` are open in all threads: 0 lets compiled calls skip the question."""

    __slots__ = ("open",)

    def __init__(self) -> None:
        self.open = 0


blocks = _Blocks()


def call_switched(
    original: Callable[..., Any], call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a compiled function as this thread's innermost block wants: `original` plain, or `call` compiled."""
    modes = getattr(_local, "modes", None)
    if not modes:
        return call(*args, **kwargs)
    with _MODES[modes[-1]]():
        return original(*args, **kwargs)


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
    RUN_ONLY: hook.run_only,
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

        return switched  # type: ignore[return-value]
