"""A function that a node of the graph gives, such as the one that `torch.func.vjp` returns."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torch import fx

from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.sequence import TupleValue
from firebrick.ir.graph.nested import Nested, Transform


class Opaque:
    """A function as a node's result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


class _Call(Nested):
    """Calls a function that another node gave."""

    def __call__(self, opaque: Opaque, args: Any, kwargs: Any) -> Any:
        """Call it."""
        return opaque.function(*_plain(args), **_plain(kwargs))


def _plain(arg: Any) -> Any:
    """A node's argument with the containers that the program had; FX holds others."""
    if isinstance(arg, dict):
        return {name: _plain(item) for name, item in arg.items()}
    if isinstance(arg, list):
        return [_plain(item) for item in arg]
    return tuple(map(_plain, arg)) if type(arg) is tuple else arg


_CALL = _Call("call", ())


class Pullback(Transform):
    """`torch.func.vjp`, whose second result is a function."""

    def apply(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Transform a function and call it."""
        result, pullback, *rest = super().apply(function, args, kwargs)
        return (result, Opaque(pullback), *rest)


class OpaqueValue(Value):
    """The function; it is called in the graph that made it and can't leave."""

    __slots__ = ("node",)
    cls = types.FunctionType

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def as_argument(self) -> Any:
        """The node."""
        return self.node

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """A node that calls it."""
        return interp.tracer.graph.call(
            interp, "call_function", _CALL, [self, TupleValue(list(args)), DictValue.of(kwargs)], {}
        )
