"""Context managers of torch that set a mode of the thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value, ValueEmitter
from firebrick.capture.values.constant import NONE
from firebrick.capture.values.method import MethodValue


class ContextValue(Value):
    """A mode switch made in captured code.

    `enter(interp)` switches and gives the function that switches back; `make` with `args` builds the
    real context manager where the value leaves.
    """

    __slots__ = ("args", "enter", "grad", "leave", "make")
    held = ("args",)

    def __init__(
        self, make: Callable[..., Any], args: Args, enter: Callable[[Interpreter], Callable[[Interpreter], None]]
    ) -> None:
        self.make, self.args, self.enter = make, list(args), enter
        self.leave: Callable[[Interpreter], None] | None = None
        self.grad = (True, True)  # whether gradients are recorded once it is left, and once it is entered

    def python_type(self) -> type:
        """The context manager's class."""
        return self.make if isinstance(self.make, type) else type(self)

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """The methods of every context manager; others break."""
        if name in ("__enter__", "__exit__", "__call__", "clone"):
            return MethodValue(self, name)
        return super().get_attr(interp, name)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`__enter__` and `__exit__`, and a copy that was not entered."""
        if name == "clone":
            return ContextValue(self.make, self.args, self.enter)
        if interp.tracer.function_modes:
            raise Break("unsupported-call", f"a context of {self.make} under a mode of functions")
        if name == "__enter__":
            if self in interp.tracer.graph.open_modes:
                raise Break("unsupported-call", "a context is entered again before it is left")
            before = torch.is_grad_enabled()
            self.leave = self.enter(interp)
            self.grad = before, torch.is_grad_enabled()
            interp.tracer.graph.open_modes.append(self)
            return self
        if name == "__exit__":
            leave, self.leave = self.leave, None
            if leave is not None:
                leave(interp)
            if self in interp.tracer.graph.open_modes:
                interp.tracer.graph.open_modes.remove(self)
            return NONE
        return super().call_method(interp, name, args, kwargs)

    def call(self, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        """As a decorator."""
        return interp.decorate_with(self, args[0])

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Make the context manager; one that was entered is entered again."""
        emitter.load_call(self.make, *self.args)
        if self.leave is not None:
            emitter.remember(self)
            emitter.call_method_on(self, "__enter__")
