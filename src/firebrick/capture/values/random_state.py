"""Random generators: what draws from one, or asks for its state, runs as plain Python, in the program's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firebrick.capture.breaks import Break
from firebrick.capture.sources import Attr
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.object import ObjectValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from firebrick.capture.interpreter import Interpreter
    from firebrick.capture.values.base import Value

__all__ = ["RandomStateValue"]


class RandomStateValue(ObjectValue):
    """A `torch.Generator`, whose state no graph reads or advances."""

    __slots__ = ()

    def as_argument(self) -> Any:
        """Never one of a graph's."""
        raise Break("random-generator", f"{self.describe()} is given to a torch function")

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """The device is known; what else there is are methods."""
        if name == "device" and self.source is not None:
            interp.tracer.guards.equals(Attr(self.source, name), self.obj.device)
            return ConstantValue(self.obj.device)
        return interp.method(self, name)

    def call_method(self, interp: Interpreter, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """They read or change the state."""
        raise Break("random-generator", f"{name}() of {self.describe()} is called")
