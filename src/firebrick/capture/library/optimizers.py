"""What `torch.optim` reads as Python numbers stays a tensor, so that a step is one graph.

Eager optimizers count steps in float32 tensors and take the powers of their betas in Python's double precision. Here
both are tensors, and those of the powers are float64, so the results are eager's.
"""

# ruff: noqa: ANN001, ANN003, ANN201, B905, D103  the inlined functions stand for untyped library code
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.library.known_callables import TRANSPARENT_MODULES, handles, handles_each, replaces
from firebrick.capture.values.constant import NONE
from firebrick.capture.values.sequence import SequenceValue
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue

if TYPE_CHECKING:
    from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value


TRANSPARENT_MODULES.add(__name__)


@replaces(optimizer._get_value)
def get_value(x):
    return x.double() if isinstance(x, torch.Tensor) else x


replaces(optimizer._stack_if_compiling)(lambda x: x)


@replaces(torch._C._group_tensors_by_device_and_dtype)
def group_tensors(lists, with_indices=False):
    if not lists[0]:
        raise RuntimeError("Expected !nested_tensorlist[0].empty() to be true, but got false.")
    keys = [(tensor.device, tensor.dtype) for tensor in lists[0]]
    places = {key: [i for i, other in enumerate(keys) if other == key] for key in dict.fromkeys(keys)}
    return {key: ([[row[i] for i in at if row] for row in lists], at * with_indices) for key, at in places.items()}


def addcdiv_(self, tensor1, tensor2, *, value):
    return self.add_(tensor1.mul(value).div(tensor2))


def addcmul_(self, tensor1, tensor2, *, value):
    return self.add_(tensor1.mul(value).mul(tensor2))


def add_(self, other, *, alpha):
    return self.add_(other * alpha)


def sub_(self, other, *, alpha):
    return self.sub_(other * alpha)


def foreach_addcdiv_(self, tensors1, tensors2, scalars):
    for each, tensor1, tensor2, value in zip(self, tensors1, tensors2, scalars):
        each.add_(tensor1.mul(value).div(tensor2))


def fused_adam_(params, grads, averages, squares, largest, steps, **settings):
    adam_step(params, grads, averages, squares, largest, steps, False, **settings)


def fused_adamw_(params, grads, averages, squares, largest, steps, **settings):
    adam_step(params, grads, averages, squares, largest, steps, True, **settings)


def adam_step(
    params, grads, averages, squares, largest, steps, decoupled, *, lr, beta1, beta2, weight_decay, eps, amsgrad,
    maximize, **unscaled,
):  # fmt: skip
    for i, (param, average, square) in enumerate(zip(params, averages, squares)):
        grad, step = -grads[i] if maximize else grads[i], steps[i].double()
        if weight_decay != 0 and decoupled:
            param.mul_(1 - lr * weight_decay)
        elif weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        average.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        if amsgrad:
            square = largest[i].copy_(torch.maximum(largest[i], square))
        denominator = (square.sqrt() / (1 - beta2**step) ** 0.5).add_(eps)
        param.sub_(average.mul(lr / (1 - beta1**step)).div(denominator))


@handles(torch._fused_sgd_, torch._fused_adagrad_)
def _fused(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    raise Break("unsupported-call", "an optimizer's fused kernel is called")


@handles_each(torch._fused_adam_, torch._fused_adamw_)
def _without_scale(kernel: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    scale = (kwargs.get(name, NONE).realize() for name in ("grad_scale", "found_inf"))
    if any(isinstance(value, TensorValue) for value in scale):
        return _fused(interp, args, kwargs)
    written_out: Any = fused_adam_ if kernel is torch._fused_adam_ else fused_adamw_
    return interp.tracer.function(written_out).call(interp, args, kwargs)


def _with_tensor(
    name: str, number: str, written_out: Any, interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs
) -> Value:
    """A method whose factor is a number of Python; given a tensor it would read it."""
    if number in kwargs and isinstance(kwargs[number].realize(), TensorValue):
        return interp.tracer.function(written_out).call(interp, (value, *args), kwargs)
    return interp.tracer.graph.call(interp, "call_method", name, (value, *args), kwargs)


for _name, _number in {"addcdiv_": "value", "addcmul_": "value", "add_": "alpha", "sub_": "alpha"}.items():
    TENSOR_METHODS[_name] = partial(_with_tensor, _name, _number, globals()[_name])

_FOREACH_ADDCDIV: Any = foreach_addcdiv_


@handles(torch._foreach_addcdiv_)
def _foreach_addcdiv(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    scalars = args[3].realize() if len(args) == 4 else None
    if isinstance(scalars, SequenceValue) and any(
        isinstance(s.realize(), TensorValue) for s in scalars.iterate(interp)
    ):
        return interp.tracer.function(_FOREACH_ADDCDIV).call(interp, args, kwargs)
    return interp.tracer.graph.call(interp, "call_function", torch._foreach_addcdiv_, args, kwargs)
