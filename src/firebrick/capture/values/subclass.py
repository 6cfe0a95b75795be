"""Tensors of classes derived from torch.Tensor: a plain tensor in the graph, and the class's own Python around it.

Calls of torch with one go to the `__torch_function__` of its class, which is captured like other Python. Where that
is switched off, as it is inside of `__torch_function__`, the plain tensor takes its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.interpreter.function_modes import overridden
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Source, Value, ValueEmitter
from firebrick.capture.values.method import MethodValue
from firebrick.capture.values.object import MISSING, ObjectValue, Overridden, bind, class_lookup, store_fields

if TYPE_CHECKING:
    from firebrick.capture.interpreter.frame_tracer import Tracer
    from firebrick.capture.values.tensor import TensorValue

_TENSOR = torch.Tensor.__mro__
_OF_ORIGINAL = frozenset({"grad", "is_leaf", "grad_fn", "_version", "_base", "retains_grad", "_backward_hooks", "data"})
"""Attributes that the plain tensor of one that was there before does not share."""


def is_plain_subclass(cls: type) -> bool:
    """Whether instances are tensors whose operations are those of plain ones below `__torch_function__`."""
    return (
        cls.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
        and not issubclass(cls, torch.nn.Parameter)
        and not cls.__module__.startswith("torch.")
    )


def _subclassed(tensor: torch.Tensor, cls: Any) -> torch.Tensor:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(cls)


class SubclassValue(ObjectValue):
    """An instance of a class derived from torch.Tensor, on the memory of `plain`."""

    __slots__ = ("plain", "tracer")

    def __init__(
        self, tracer: Tracer, cls: type, plain: TensorValue, obj: Any = None, source: Source | None = None
    ) -> None:
        super().__init__(cls, obj, source)
        self.tracer, self.plain = tracer, plain
        plain.owner = self

    def overrides(self) -> bool:
        """Whether its class sees calls of torch now."""
        own, _ = class_lookup(self.cls, "__torch_function__")
        return not self.tracer.overrides_off and own is not torch._C._disabled_torch_function_impl

    def as_argument(self) -> Any:
        """The plain tensor's node, unless the class is to be asked."""
        if self.overrides():
            raise Overridden(self)
        return self.plain.as_argument()

    def children(self) -> Sequence[Value]:
        """The plain tensor and attributes."""
        return (self.plain, *super().children())

    def _of_tensor(self, interp: Interpreter, name: str) -> Any:
        """What torch.Tensor has under a name that the class and the instance do not define themselves, or MISSING."""
        entry, owner = interp.lookup(self.cls, name)
        if owner not in _TENSOR or (self.obj is not None and name in self.obj.__dict__) or name in self.fields:
            return MISSING
        return entry

    def generic_get_attr(self, interp: Interpreter, name: str) -> Value:
        """As of other objects; what torch.Tensor defines goes to `__torch_function__` or the plain tensor."""
        entry = self._of_tensor(interp, name)
        if entry is MISSING or name in ("__dict__", "__class__"):
            return super().generic_get_attr(interp, name)
        if isinstance(entry, (classmethod, staticmethod)):
            return bind(interp, entry, torch.Tensor, self, name)
        if callable(entry):
            return MethodValue(self, name)
        if name in _OF_ORIGINAL:
            raise Break("tensor-subclass", f"{name} of {self.describe()} is read")
        if not self.overrides():
            return self.plain.get_attr(interp, name)
        return overridden(interp, getattr(torch.Tensor, name).__get__, [self], {})

    def generic_set_attr(self, interp: Interpreter, name: str, value: Value) -> None:
        """As of other objects; what torch.Tensor defines breaks."""
        entry = self._of_tensor(interp, name)
        if entry is not MISSING and name != "__dict__" and not callable(entry):
            raise Break("tensor-subclass", f"{name} of {self.describe()} is set")
        super().generic_set_attr(interp, name, value)

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """Methods of the class itself are inlined."""
        entry = self._of_tensor(interp, name)
        if entry is MISSING or isinstance(entry, (classmethod, staticmethod)):
            return super().call_method(interp, name, args, kwargs)
        return self.tensor_method(interp, name, args, kwargs)

    def tensor_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """A method of torch.Tensor."""
        if self.overrides() and getattr(torch.Tensor, name) not in torch.overrides.get_ignored_functions():
            return overridden(interp, name, [self, *args], kwargs)
        if name in ("requires_grad_", "detach_", "backward", "register_hook", "set_", "is_inference"):
            raise Break("tensor-subclass", f"{name}() of {self.describe()} is called")
        return self.plain.call_method(interp, name, args, kwargs)

    def special(self, interp: Interpreter, name: str) -> Value | None:
        """Special methods that the class itself defines."""
        return None if self._of_tensor(interp, name) is not MISSING else super().special(interp, name)

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """Rows."""
        if self._of_tensor(interp, "__iter__") is MISSING:
            return super().iterate(interp)
        if self.overrides():
            raise Break("tensor-subclass", f"iteration over {self.describe()}")
        return self.plain.iterate(interp)

    def length(self, interp: Interpreter) -> int:
        """Size of the first dimension."""
        if self._of_tensor(interp, "__len__") is MISSING:
            return super().length(interp)
        if not self.overrides():
            return self.plain.length(interp)
        return interp.index_of(overridden(interp, "__len__", [self], {}))

    def truth(self, interp: Interpreter) -> bool:
        """Depends on data."""
        raise Break("data-dependent-branch", "the truth of a tensor is asked")

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """`plain.as_subclass(cls)`, then its attributes; a class may say what makes the object that it stands for."""
        if made_by := vars(self.cls).get("made_by"):
            emitter.load_call(made_by[0], *[self.fields[name].realize() for name in made_by[1]])
            emitter.remember(self)
            return
        emitter.load_call(_subclassed, self.plain, self.cls)
        emitter.remember(self)
        store_fields(emitter, self, self.fields)


def as_subclass(interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`Tensor.as_subclass`: a new tensor on the same memory."""
    cls = args[0].realize().as_constant()
    if cls is not torch.Tensor and not (is_plain_subclass(cls) and issubclass(cls, torch.Tensor)):
        raise Break("tensor-subclass", f"as_subclass() to {cls.__name__}")
    alias = interp.tracer.graph.call(interp, "call_function", torch.ops.aten.alias.default, [value], {}).realize()
    made: Any = alias
    return alias if cls is torch.Tensor else SubclassValue(interp.tracer, cls, made)


def make_subclass(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`Tensor._make_subclass(cls, data, requires_grad)`: detached, and no leaf that wants a gradient."""
    data = args[1].realize()
    plain = data.plain if isinstance(data, SubclassValue) else data
    requires_grad = interp.flag(args[2] if len(args) > 2 else kwargs.get("require_grad"), False)
    if requires_grad or set(kwargs) - {"require_grad"} or not issubclass(plain.python_type(), torch.Tensor):
        raise Break("tensor-subclass", "a tensor of a class that wants gradients is made")
    detached: Any = plain.call_method(interp, "detach", [], {}).realize()
    return as_subclass(interp, detached, [args[0]], {})
