"""Methods of built-in kinds, bound to a value whose class here implements them."""

from __future__ import annotations

import types

from firebrick.capture.library.arity import fit_method
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value, ValueEmitter


class MethodValue(Value):
    """`owner.name`, where `owner.call_method(name, ...)` is what a call means."""

    __slots__ = ("name", "owner")
    cls: type = types.BuiltinMethodType
    held = ("owner",)

    def __init__(self, owner: Value, name: str) -> None:
        self.owner, self.name = owner, name

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """Call the owner's method."""
        args, kwargs = fit_method(self.owner.python_type(), self.name, args, kwargs)
        return self.owner.call_method(interp, self.name, args, kwargs)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """`__self__` and `__name__`."""
        if name == "__self__":
            return self.owner
        if name == "__name__":
            return interp.tracer.known(self.name)
        return super().get_attr(interp, name)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Load the owner and its attribute."""
        emitter.load(self.owner)
        emitter.load_attr(self.name)
