"""Functions marked with `nonstrict_trace`: one node of the graph, which traces go through without capture's help.

Containers are taken apart at the call, and a module's parameters and buffers become arguments beside the tensors.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import reduce
from typing import TYPE_CHECKING, Any

from torch.nn.utils import stateless
from torch.utils import _pytree as pytree

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.values.mapping import DictValue
from firebrick.capture.values.module import ModuleValue
from firebrick.capture.values.sequence import ListValue, TupleValue
from firebrick.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from firebrick.capture.interpreter.interpreter import Interpreter
    from firebrick.capture.values.base import Args, Kwargs, Value


class _Input(int):
    """The place of an argument that is a tensor, among those of the node."""


class Opaque:
    """A node's target that calls `function` with the arguments it was called with.

    It has no text, so graphs that have such a node are not kept on disk.
    """

    def __init__(
        self, function: Callable[..., Any], arguments: Any, states: Sequence[tuple[nn.Module, Sequence[str]]]
    ) -> None:
        self.function, self.arguments, self.states = function, arguments, states
        self.__name__ = str(getattr(function, "__name__", "function"))

    def __call__(self, *tensors: Any) -> Any:
        """Call it; the tensors of modules come last."""
        args, kwargs = pytree.tree_map(lambda leaf: tensors[leaf] if type(leaf) is _Input else leaf, self.arguments)
        rest = iter(tensors[len(tensors) - sum(len(names) for _, names in self.states) :])
        with ExitStack() as stack:
            for module, names in self.states:
                named = {name: next(rest) for name in names}
                stack.enter_context(stateless._reparametrize_module(module, named, tie_weights=True))
            return self.function(*args, **kwargs)


class _Arguments:
    """Takes values apart: tensors in order, and the modules met."""

    def __init__(self, interp: Interpreter) -> None:
        self.interp = interp
        self.tensors: list[Value] = []
        self.modules: dict[int, ModuleValue] = {}

    def of(self, value: Value) -> Any:
        """What the function gets for a value: a place for a tensor, else the object itself."""
        value = value.realize()
        if isinstance(value, TensorValue):
            self.tensors.append(value)
            return _Input(len(self.tensors) - 1)
        if isinstance(value, ModuleValue):
            self.interp.tracer.guards.pin(value)
            self.modules[id(value.obj)] = value
            return value.obj
        if type(value) in (TupleValue, ListValue):
            return value.python_type()([self.of(item) for item in self.interp.iterate(value)])
        if type(value) is DictValue and value.python_type() is dict:
            return {key.realize().as_constant(): self.of(item) for key, item in value.whole(self.interp).values()}
        if not value.is_constant():
            raise Break("unsupported-call", f"a function marked with nonstrict_trace takes {value.describe()}")
        return value.as_constant()


def call_nonstrict(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """The call as one node."""
    taken = _Arguments(interp)
    arguments = tuple([taken.of(arg) for arg in args]), {name: taken.of(arg) for name, arg in kwargs.items()}
    states = [
        (value.obj, [name for name, _ in (*value.obj.named_parameters(), *value.obj.named_buffers())])
        for value in taken.modules.values()
    ]
    step: Any = lambda owner, part: owner.get_attr(interp, part).realize()  # noqa: E731
    owned = [reduce(step, name.split("."), taken.modules[id(module)]) for module, names in states for name in names]
    target = Opaque(getattr(function, "__wrapped__", function), arguments, states)
    return interp.tracer.graph.call(interp, "call_function", target, [*taken.tensors, *owned], {})
