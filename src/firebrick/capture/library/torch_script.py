"""Rules of TorchScript's functions in Python code, and of the constructors from before `torch.tensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch._jit_internal
import torch.jit

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.library.known_callables import CODE_HANDLERS, NAMED, handles, replaces, unwrapped
from firebrick.capture.values.base import NotConstant
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.sequence import SequenceValue, TupleValue
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue

if TYPE_CHECKING:
    from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value


handles(torch.jit.annotate)(lambda interp, args, kwargs: args[1] if len(args) > 1 else kwargs["the_value"])
replaces(torch.jit.isinstance)(torch._jit_internal._isinstance)  # type: ignore[no-untyped-call]
_sample: Any = torch.jit.script_if_tracing(lambda: None)
CODE_HANDLERS[_sample.__code__] = unwrapped  # nothing is traced where code is captured


# -- constructors -------------------------------------------------------------------------------------

_KINDS = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")


def _old_tensor(interp: Interpreter, dtype: torch.dtype, args: Args, kwargs: Kwargs) -> Value:
    """`torch.FloatTensor(2, 3)`, of sizes, or `torch.FloatTensor([1.0, 2.0])`, of data."""
    if kwargs:
        raise Break("unsupported-call", "an old constructor of tensors is called with names")
    options: dict[str, Value] = {"dtype": ConstantValue(dtype), "device": ConstantValue(torch.device("cpu"))}
    first = args[0].realize() if args else None
    call = interp.tracer.graph.call
    if isinstance(first, TensorValue) and len(args) == 1:
        if first.fake.dtype is not dtype or first.fake.device.type != "cpu":
            raise Break("unsupported-call", "an old constructor of tensors is called with a tensor of another kind")
        return call(interp, "call_function", torch.ops.aten.alias.default, args, {})
    if isinstance(first, SequenceValue) and first.python_type() is not torch.Size:
        if len(args) > 1:
            raise Break("unsupported-call", "an old constructor of tensors is called with several sequences")
        return call(interp, "call_function", torch.tensor, args, options)
    sizes = list(interp.iterate(first)) if isinstance(first, SequenceValue) else [arg.realize() for arg in args]
    if not all(isinstance(size, ConstantValue) for size in sizes):
        raise Break("unsupported-call", "an old constructor of tensors is called")
    shape = TupleValue([*sizes] if args else [ConstantValue(0)])
    return call(interp, "call_function", torch.empty, [shape], options)


def _constructs(cls: Any, dtype: torch.dtype | None) -> None:
    @handles(cls)
    def rule(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
        return _old_tensor(interp, dtype or torch.get_default_dtype(), args, kwargs)


for _kind in _KINDS:
    _cls = getattr(torch, f"{_kind}Tensor")
    _constructs(_cls, _cls.dtype)
_constructs(torch.Tensor, None)


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
