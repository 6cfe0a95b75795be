"""Rules for torch.autograd.Function and for what prepares or observes training.

The graph of a hook of a tensor that the graph makes is a node, which traces of gradients run.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.graph import has_tensor
from firebrick.capture.inference_mode import made_of, storage_of
from firebrick.capture.library.known_callables import CODE_HANDLERS, handles
from firebrick.capture.library.transforms import Sub
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value
from firebrick.capture.values.constant import NONE
from firebrick.capture.values.leaf import can_be_leaf, is_fresh, is_untouched, leaf_of, make_leaf
from firebrick.capture.values.new_class import twin
from firebrick.capture.values.object import ObjectValue
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue
from firebrick.ir.graph.nested import Hooked


@dataclass(frozen=True)
class Named:
    """A node's target under a name of its own: that of the function is one for all, as `apply` is."""

    function: Any
    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        return self.function(*args, **kwargs)


def _tensors(values: Sequence[Value]) -> Iterator[TensorValue]:
    for value in values:
        real = value.realize()
        if isinstance(real, TensorValue):
            yield real
        else:
            yield from _tensors(real.children())


def apply_function(interp: Interpreter, cls: Any, args: Args, kwargs: Kwargs) -> Value:
    """`cls.apply(...)`: inlined where no gradient is recorded, else one node."""
    if interp.tracer.graph.in_transform:
        raise Break(
            "unsupported-call", f"{cls.__name__}.apply() inside of a torch.func transform, which has rules for it"
        )
    recorded = torch.is_grad_enabled() and any(value.fake.requires_grad for value in _tensors(args))
    if recorded or not any(map(has_tensor, args)):
        new_class = interp.tracer.graph.new_objects.get(id(cls))
        cls = cls if new_class is None else twin(new_class)
        return interp.tracer.graph.call(interp, "call_function", Named(cls.apply, cls.__name__), args, kwargs)
    forward, _ = interp.lookup(cls, "forward")
    function = forward.__func__ if isinstance(forward, staticmethod) else forward
    _, owner = interp.lookup(cls, "setup_context")
    if owner is torch.autograd.function._SingleLevelFunction or not isinstance(function, types.FunctionType):
        arguments: list[Value] = [ObjectValue(torch.autograd.function.FunctionCtx), *args]
    else:
        arguments = list(args)
    result = interp.tracer.known(function).call(interp, arguments, kwargs)
    places = {storage_of(value.fake) for value in _tensors(args)}
    if any(storage_of(value.fake) in places for value in _tensors([result])):  # `apply` gives other tensors than it
        raise Break("unsupported-call", f"{cls.__name__}.forward() returns a tensor on the memory of its arguments")
    return result


def _apply(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].realize().as_constant()
    return apply_function(interp, cls, args[1:], kwargs)


_method: Any = vars(torch.autograd.Function)["apply"]
if isinstance(_method, classmethod):
    CODE_HANDLERS[_method.__func__.__code__] = lambda interp, _, args, kwargs: _apply(interp, args, kwargs)
else:  # torch 2.14 has it in C
    handles(_method)(_apply)


@handles(torch.nn.Parameter)
def _parameter(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    data = (args[0] if args else kwargs.get("data", NONE)).realize()
    requires_grad = interp.flag(args[1] if len(args) > 1 else kwargs.get("requires_grad"), True)
    if not isinstance(data, TensorValue) or data.cls not in (torch.Tensor, torch.nn.Parameter):
        raise Break("unsupported-call", "a parameter is made of what is no tensor")
    if requires_grad and not can_be_leaf(data):
        interp.raise_new(RuntimeError, "Only Tensors of floating point and complex dtype can require gradients")
    inference = interp.tracer.graph.inference
    if inference.in_region or (made_of(data.fake) is not None and not inference.around):
        raise Break("unsupported-call", "a parameter is made in inference mode, or of a tensor made there")
    if requires_grad and (torch.is_grad_enabled() or interp.tracer.graph.grad_at_start):
        if is_fresh(interp, data):
            return make_leaf(interp, torch.nn.Parameter, data)
        if is_untouched(interp, data):
            return leaf_of(interp, data)
    detached = data.call_method(interp, "detach", [], {})
    assert isinstance(detached, TensorValue)
    detached.cls = torch.nn.Parameter
    detached.fake.requires_grad_(requires_grad)
    # A leaf that the graph does not know of: where gradients are recorded, it is used after the graph.
    if requires_grad:
        detached.data_version = detached.fake._version
    return detached


@handles(
    torch.autograd.function.FunctionCtx.save_for_backward,
    torch.autograd.function.FunctionCtx.mark_non_differentiable,
    torch.autograd.function.FunctionCtx.set_materialize_grads,
    torch.autograd.function.FunctionCtx.mark_dirty,
)
def _tell_context(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Nothing, where `forward` is inlined because no gradient is recorded."""
    if args[0].realize().source is not None:
        raise Break("unsupported-call", "the context of a torch.autograd.Function that plain Python applies is told")
    return NONE


handles(torch._C._log_api_usage_once)(lambda interp, args, kwargs: NONE)


# -- hooks of tensors ---------------------------------------------------------------------------------


class _Handle(Value):
    """What `register_hook` returns; a hook of a graph is not removed, so whatever uses it ends the graph."""

    __slots__ = ()
    cls = RemovableHandle


def _register_hook(interp: Interpreter, tensor: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    tracer = interp.tracer
    (function,) = (*args, *kwargs.values())
    node = tensor.as_argument()
    is_made = node.op in ("call_function", "call_method") and node.graph is tracer.graph.graph
    if not is_made or tracer.graph.outer is not None or tensor.fake.grad_fn is None:
        raise Break("unsupported-call", f"Tensor.register_hook() is called on {tensor.describe()}")
    sub, effects = Sub(interp), tracer.effects.count
    gradient = torch.empty_like(tensor.fake, requires_grad=False)
    body, _ = sub.capture(function, [sub.argument(gradient)], {}, grad=False)
    if tracer.effects.count != effects or sub.graph.changes_arguments():
        raise Break("unsupported-call", "Tensor.register_hook() with a hook that does more than to give a gradient")
    tracer.graph.call(interp, "call_function", Hooked(body), (tensor, sub.lifted()), {})
    return _Handle(None)


TENSOR_METHODS["register_hook"] = _register_hook
