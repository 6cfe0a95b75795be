"""Compiled modules: objects of a subclass of the module's class that share everything with the original.

Both objects have the same `__dict__`: the same parameters, buffers, children, hooks and training flag.
So state dicts have equal keys, attributes need no forwarding, and `isinstance` holds.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from functools import partial
from types import MemberDescriptorType
from typing import Any

import torch
from torch import nn

from firebrick import backends
from firebrick.api.early_probes import prepare
from firebrick.api.recorded_calls import Calls
from firebrick.api.settings import Settings
from firebrick.api.switches import blocks, call_switched, loaded
from firebrick.capture import hook
from firebrick.capture.stance import DEFAULT, FRONT_END, current

_STATE = "_firebrick"


class _State:
    """What a compiled module knows: the original object, how it was compiled, and how to call it.

    It lies in a slot of the object and no reference leads back to it, so it dies with the object: classes die later.
    """

    __slots__ = ("call", "calls", "forced", "forward", "original", "settings")

    def __init__(self, original: nn.Module, settings: Settings) -> None:
        scope = hook.Scope()
        self.calls = Calls(original)
        begin = functools.cache(partial(prepare, original, settings.config))
        capture = settings.capturer(scope)
        ours = settings.backend == backends.FIREBRICK
        capturer = self.calls.watched((lambda frame: (begin(), capture(frame))[1]) if ours else capture)
        self.original, self.settings = original, settings
        self.call = hook.Wrapped(original, capturer, scope)
        self.forward = hook.Wrapped(original.forward, capturer, scope)
        self.forced = functools.cache(settings.forced)


def compile_module(module: nn.Module, settings: Settings) -> nn.Module:
    """Return an object that behaves as `module` and runs compiled."""
    original = original_of(module)
    cls = type(original)
    forward = original.forward if isinstance(original, torch.jit.ScriptModule) else cls.forward
    namespace = {
        "__slots__": (_STATE,), "__module__": cls.__module__, "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__, "__call__": _call, "forward": _forward_like(forward), "__reduce_ex__": _reduce,
        "__deepcopy__": _deepcopy, "__copy__": _copy, "_orig_mod": property(original_of),
    }  # fmt: skip
    metaclass: Any = type(cls)
    compiled: nn.Module = object.__new__(metaclass(cls.__name__, (cls,), namespace))
    object.__setattr__(compiled, "__dict__", original.__dict__)
    object.__setattr__(compiled, _STATE, _State(original, settings))
    return compiled


def original_of(module: nn.Module) -> nn.Module:
    """Return the module that a compiled one was made from; any other module itself."""
    state = state_of(module)
    return module if state is None else state.original


def state_of(module: nn.Module) -> _State | None:
    """Return what a compiled module knows, None if it was not compiled."""
    slot = getattr(type(module), _STATE, None)
    return slot.__get__(module) if isinstance(slot, MemberDescriptorType) else None


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    state = self._firebrick
    if blocks.open or (FRONT_END in loaded and current() is not DEFAULT):
        return call_switched(state.original, state.call, state.forced, args, kwargs)
    return state.call(*args, **kwargs)


def _forward_like(original: Callable[..., Any]) -> Callable[..., Any]:
    """A `forward` with the name, signature and text of the original's, which libraries choose arguments by."""

    @functools.wraps(original, updated=())
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = self._firebrick
        if blocks.open or (FRONT_END in loaded and current() is not DEFAULT):
            return call_switched(state.original.forward, state.forward, state.forced, args, kwargs)
        return state.forward(*args, **kwargs)

    return forward


def _reduce(self: Any, protocol: Any) -> Any:
    state = self._firebrick
    return compile_module, (state.original, state.settings)


def _deepcopy(self: Any, memo: dict[int, Any]) -> nn.Module:
    state = self._firebrick
    copied = compile_module(copy.deepcopy(state.original, memo), state.settings)
    memo[id(self)] = copied
    return copied


def _copy(self: Any) -> nn.Module:
    state = self._firebrick
    return compile_module(copy.copy(state.original), state.settings)
