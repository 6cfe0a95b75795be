"""Addresses of objects, which `id()` and `hash()` give, and weak references: compared by the objects they lead to."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from firebrick.capture.breaks.catalogue import Break, SkipFrame
from firebrick.capture.guards.sources import Local
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Source, Tracer, Value, ValueEmitter


class AddressValue(Value):
    """`id(target)` or `hash(target)`. A number is asked of objects from outside alone, which then stay the same."""

    __slots__ = ("function", "interp", "target")
    cls = int
    held = ("target",)

    def __init__(self, function: Callable[[Any], int], target: Value, interp: Interpreter) -> None:
        self.function, self.target, self.interp = function, target, interp

    def is_constant(self) -> bool:
        """Whether the object is one from outside."""
        return getattr(self.target, "obj", None) is not None and self.target.source is not None

    def as_constant(self) -> Any:
        """The number; raises Break: each call makes another object."""
        if not self.is_constant():
            raise Break("unsupported-call", f"{self.function.__name__}() of {self.target.describe()}")
        obj = self.target.obj  # type: ignore[attr-defined]
        self.interp.tracer.guards.identity(self.target.source, obj)  # type: ignore[arg-type]
        return self.function(obj)

    def identity(self) -> Hashable:
        """What stands for it beside other addresses of objects that are alive."""
        tracer = self.interp.tracer
        check_held(tracer.innermost or tracer.current, self.target)
        return (AddressValue, self.target.identity())

    def key(self) -> Hashable:
        """Its key in a dict or set: the number, where one that may be an address was a key before."""
        if self.interp.tracer.is_key["number"]:
            return self.as_constant()  # type: ignore[no-any-return]
        self.interp.tracer.is_key["address"] = True
        return self.identity()

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Ask for it where it leaves."""
        emitter.load_call(self.function, self.target)


class WeakReferenceValue(Value):
    """A weak reference: to an object that the captured code holds, or one from outside."""

    __slots__ = ("callback", "target")
    cls = weakref.ref
    held = ("target",)

    def __init__(self, target: Value, source: Source | None = None, callback: Value | None = None) -> None:
        self.source, self.target, self.callback = source, target, callback

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """The object, which something must hold."""
        check_held(interp, self.target)
        return self.target

    def alive(self) -> Value:
        """The object, by which references are compared and hashed as long as it is there; raises Break: it is gone."""
        if self.target.python_type() is type(None):
            raise Break("unsupported-operation", "a weak reference to an object that is gone is compared")
        return self.target.realize()

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`weakref.ref(target)`; a continuation would not hold a target made here as long as the frame does."""
        if getattr(self.target, "obj", None) is None:
            raise SkipFrame("a weak reference to a new object is alive at a graph break", always=True)
        emitter.load_call(weakref.ref, self.target, *([] if self.callback is None else [self.callback]))


def number_key(tracer: Tracer, number: object) -> None:
    """Note a number that is a key and may be an address; raises Break: addresses that are not known are keys too."""
    if type(number) is int and number >> 20:
        if tracer.is_key["address"]:
            raise Break("unsupported-call", "id() gives a key, and numbers from elsewhere are keys too")
        tracer.is_key["number"] = True


def check_held(interp: Interpreter, target: Value) -> None:
    """Nobody counts references here: what was read from an object is alive, and so is what is in a local variable."""
    at: Interpreter | None = interp
    if getattr(target, "obj", None) is not None and not isinstance(target.source, Local):
        return
    while at is not None:
        for value in at.slots.values():
            content = getattr(value, "content", value)  # of a cell
            if content is not None and content.realize() is target:
                return
        at = at.parent
    raise SkipFrame("the address of an object, or a weak reference to one, that no variable holds", always=True)
