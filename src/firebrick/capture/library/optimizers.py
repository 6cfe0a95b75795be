"""What `torch.optim` reads as Python numbers stays a tensor, so that a step is one graph.

Eager optimizers count steps in float32 tensors and take the powers of their betas in Python's double precision. Here
both are tensors, and those of the powers are float64, so the results are eager's.
"""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, B905, D103  the inlined functions stand for untyped library code
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch.optim import adam, optimizer

from firebrick.capture.breaks.catalogue import breaks
from firebrick.capture.library.known_callables import TRANSPARENT_MODULES, handles, handles_each, replaces
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.sequence import SequenceValue
from firebrick.capture.values.tensor import TENSOR_METHODS, TensorValue

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


def foreach_addcdiv_(self, tensors1, tensors2, scalars):
    for each, tensor1, tensor2, value in zip(self, tensors1, tensors2, scalars):
        each.add_(tensor1.mul(value).div(tensor2))


_ADAM: Any = adam._single_tensor_adam


def adam_step(*lists, grad_scale=None, found_inf=None, **options):
    before = [step - 1 for step in lists[-1]]  # which the fused kernel is given as they are after it
    none = {"has_complex": False, "capturable": False, "differentiable": False}
    _ADAM(*lists[:-1], before, None, None, **none, **options)


_fused = breaks("unsupported-call", "an optimizer's fused kernel is called")
handles(torch._fused_sgd_, torch._fused_adagrad_)(_fused)


@handles_each(torch._fused_adam_, torch._fused_adamw_)
def _without_scale(kernel: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    scale = (kwargs.get(name, NONE).realize() for name in ("grad_scale", "found_inf"))
    if any(isinstance(value, TensorValue) for value in scale):
        _fused()
    decoupled = {"decoupled_weight_decay": ConstantValue(kernel is torch._fused_adamw_)}
    return interp.tracer.function(adam_step).call(interp, args, {**kwargs, **decoupled})  # type: ignore[arg-type]


_WITH_NUMBER: Mapping[str, tuple[str, Any]] = {
    "addcdiv_": ("value", lambda self, one, two, *, value: self.add_(one.mul(value).div(two))),
    "addcmul_": ("value", lambda self, one, two, *, value: self.add_(one.mul(value).mul(two))),
    "add_": ("alpha", lambda self, other, *, alpha: self.add_(other * alpha)),
    "sub_": ("alpha", lambda self, other, *, alpha: self.sub_(other * alpha)),
}
"""Method -> its number of Python, and the same for a tensor, which the method would read."""


def _with_number(name: str, interp: Interpreter, value: TensorValue, args: Args, kwargs: Kwargs) -> Value:
    number, written_out = _WITH_NUMBER[name]
    if isinstance(kwargs.get(number, NONE).realize(), TensorValue):
        return interp.tracer.function(written_out).call(interp, (value, *args), kwargs)
    return interp.tracer.graph.call(interp, "call_method", name, (value, *args), kwargs)


TENSOR_METHODS.update({name: partial(_with_number, name) for name in _WITH_NUMBER})


@handles(torch._foreach_addcdiv_)
def _foreach_addcdiv(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    scalars = args[3].realize() if len(args) == 4 else None
    if isinstance(scalars, SequenceValue) and any(isinstance(s.realize(), TensorValue) for s in scalars.items):
        return interp.tracer.function(foreach_addcdiv_).call(interp, args, kwargs)  # type: ignore[arg-type]
    return interp.tracer.graph.call(interp, "call_function", torch._foreach_addcdiv_, args, kwargs)
