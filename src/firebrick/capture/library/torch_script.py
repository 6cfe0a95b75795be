"""Rules of TorchScript's functions in Python code, and of the constructors from before `torch.tensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch._jit_internal
import torch.jit

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.library.known_callables import (
    CODE_HANDLERS,
    NAMED,
    TRANSPARENT_MODULES,
    handles,
    replaces,
    unwrapped,
)
from firebrick.capture.marks import graph_break
from firebrick.capture.values.base import NotConstant
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue

if TYPE_CHECKING:
    from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value


handles(torch.jit.annotate)(lambda interp, args, kwargs: args[1] if len(args) > 1 else kwargs["the_value"])
replaces(torch.jit.isinstance)(torch._jit_internal._isinstance)  # type: ignore[no-untyped-call]
_sample: Any = torch.jit.script_if_tracing(lambda: None)
CODE_HANDLERS[_sample.__code__] = unwrapped  # nothing is traced where code is captured


# -- constructors -------------------------------------------------------------------------------------

_KINDS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")


def _constructs(dtype: torch.dtype | None) -> Any:
    def old_tensor(*args: Any, device: Any = None) -> Any:
        """A new tensor of sizes, one of data, or the tensor given."""
        kind, first = dtype or torch.get_default_dtype(), args[0] if args else 0
        if isinstance(first, torch.Tensor) and len(args) == 1 and first.dtype is kind and first.device.type == "cpu":
            return torch.ops.aten.alias(first)
        if isinstance(first, (list, tuple)) and not isinstance(first, torch.Size) and len(args) == 1:
            return torch.tensor(first, dtype=kind, device="cpu")
        if device is not None or not isinstance(first, (int, torch.Size)):
            graph_break()
        return torch.empty(first if isinstance(first, torch.Size) else args or 0, dtype=kind, device="cpu")

    return old_tensor


TRANSPARENT_MODULES.add(__name__)
for _cls in (torch.Tensor, *(getattr(torch, f"{kind}Tensor") for kind in _KINDS)):
    replaces(_cls)(_constructs(None if _cls is torch.Tensor else _cls.dtype))


def _type(interp: Interpreter, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    """`Tensor.type`; a class of tensors is given by its name."""
    if not args and "dtype" not in kwargs:
        return ConstantValue(tensor.fake.type())
    first, *rest = args or [kwargs["dtype"]]
    try:
        kind = first.realize().as_constant()
    except NotConstant:
        raise Break("unsupported-call", "Tensor.type() of what is not known") from None
    if not isinstance(kind, (str, torch.dtype)):
        kind = f"{kind.__module__}.{kind.__name__}"
    named = {name: value for name, value in kwargs.items() if name != "dtype"}
    return interp.tracer.graph.call(interp, "call_method", "type", [tensor, ConstantValue(kind), *rest], named)


TENSOR_METHODS["type"] = _type


class Scripted:
    """A function that TorchScript compiled, as a node's target: its own name is one for all."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.__name__ = str(function.name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it."""
        return self.function(*args, **kwargs)


def _scripted(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    function = getattr(args[0].realize(), "obj", None)
    if not isinstance(function, torch.jit.ScriptFunction):
        raise Break("unsupported-call", "a function of TorchScript that is not known is called")
    return interp.tracer.graph.call(interp, "call_function", Scripted(function), args[1:], kwargs)


handles(vars(torch.jit.ScriptFunction)["__call__"])(_scripted)
# torch.testing puts this in its place, for the whole process.
NAMED["torch.testing._internal.common_utils", "prof_func_call"] = lambda interp, _, args, kwargs: _scripted(
    interp, args, kwargs
)
