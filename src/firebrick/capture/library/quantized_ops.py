"""torch's quantized tensors, and the layers and functions that torch.ao makes of them, in captured code.

They are inlined as polyfills are: graphs hold plain calls on codes, of which compilers fuse the int8 kernels.
"""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, D103  these functions stand for untyped library code
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from firebrick.capture.guards.sources import Applied
from firebrick.capture.library.known_callables import FOLDABLE, NAMED, TRANSPARENT_MODULES, handles, key_of, replaces
from firebrick.capture.marks import graph_break
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.tensor import TensorValue
from firebrick.runtime.quantized import channels_last, inverse, kind_of

TRANSPARENT_MODULES.update((__name__, channels_last.__module__))
_CALLS = {
    "codes": "chunk clone contiguous detach expand expand_as flatten flip gather index_select movedim narrow permute "
    "repeat reshape roll select split squeeze swapaxes swapdims t transpose unbind unflatten unsqueeze view view_as "
    "pixel_shuffle pixel_unshuffle channel_shuffle __getitem__ getitem __get__ __len__ size stride dim numel nelement "
    "ndimension is_contiguous is_floating_point is_complex storage_offset",
    "steps": "relu max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d "
    "adaptive_avg_pool2d adaptive_avg_pool3d mean interpolate pad",
    "numbers": "leaky_relu hardtanh relu6 clamp gelu threshold",
    "unit": "sigmoid hardsigmoid",
    "around zero": "tanh",
    **{name: name for name in ("cat", "dequantize", "int_repr", "q_scale", "q_zero_point")},
}
"""Calls of torch by what they are made on: codes; whole steps from zero, where multiples give a multiple; numbers,
whose results have the same scale or, where their range is known, one of their own."""
_KIND_OF_CALL = {name: kind for kind, names in _CALLS.items() for name in names.split()}
_IN_PLACE = ("relu", "leaky_relu", "hardtanh", "relu6", "threshold", "clamp")


def kind_of_call(name, flags):
    """On what a call is made, and whether it writes to its first argument."""
    plain = name if name.startswith("__") else name.rstrip("_")
    writes = plain != name or (plain in _IN_PLACE and True in flags)
    return "" if writes and plain not in _IN_PLACE else _KIND_OF_CALL.get(plain, ""), writes


FOLDABLE.update({key_of(function): function for function in (kind_of, kind_of_call, inverse)})


@replaces("quantized")
class Quantized(torch.Tensor):
    """Codes that stand for (codes - zero_point) * scale; `given`: they are a copy of a tensor's from outside."""

    given = False
    is_quantized = True
    made_by = (torch._make_per_tensor_quantized_tensor, ("codes", "scale", "zero_point"))
    """What makes the real tensor, where one leaves the graph."""

    dtype = property(lambda self: torch.quint8 if self.codes.dtype == torch.uint8 else torch.qint8)
    steps = property(lambda self: self.codes.float() - self.zero_point)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None) -> Any:
        (x, *rest), kwargs = args, kwargs or {}
        flags = [value for value in (*rest, *kwargs.values()) if isinstance(value, bool)]
        kind, writes = kind_of_call(func.__name__, flags)
        if kind == "cat":
            return quantize(func(_numbers(x), *rest, **kwargs), x[0].scale, x[0].zero_point, x[0].dtype)
        if kind == "codes":
            return _like(x, func(x.codes, *rest, **kwargs))
        if kind in ("q_scale", "q_zero_point"):
            return x.scale if kind == "q_scale" else x.zero_point
        if kind in ("dequantize", "int_repr"):
            return x.steps * x.scale if kind == "dequantize" else x.codes.clone()
        filled = func.__name__ == "pad" and (kwargs.get("value") or any(rest[2:]))
        if not kind or filled or (writes and x.given):
            return NotImplemented
        if kind == "steps":
            codes = func(x.steps, *rest, **kwargs) + x.zero_point  # rounded with it, which decides about halves
            y = _coded(torch.round(codes), x.scale, x.zero_point, x.dtype)
        else:
            low = kind_of(x.dtype)[1]
            at = {"numbers": (x.scale, x.zero_point), "unit": (1 / 256, low), "around zero": (1 / 128, low + 128)}
            y = quantize(func(x.dequantize(), *rest, **kwargs), *at[kind], x.dtype)
        if not writes:
            return y
        x.codes.copy_(y.codes)
        x.scale, x.zero_point = y.scale, y.zero_point
        return x


def _like(x, codes):
    if isinstance(codes, torch.Tensor):
        return _quantized(codes, x.scale, x.zero_point)
    several = isinstance(codes, (tuple, list)) and codes and isinstance(codes[0], torch.Tensor)
    return tuple([_like(x, one) for one in codes]) if several else codes


def _quantized(codes, scale, zero_point):
    result = codes.as_subclass(Quantized)
    result.codes, result.scale, result.zero_point = codes, scale, zero_point
    return result


def _coded(codes, scale, zero_point, dtype):
    kind, low, high = kind_of(dtype)
    return _quantized(torch.clamp(codes, low, high).to(kind), scale, zero_point)


def number_in(value):
    """The number in a tensor that was there before; a rule knows it."""
    raise NotImplementedError


@handles(number_in)
def _number_in(interp, args, kwargs):
    value = args[0].realize()
    there = isinstance(value, TensorValue) and value.obj is not None and value.source is not None
    if not there or value.obj.numel() != 1 or any(value.fake is one for one in interp.tracer.graph.written):
        return value
    number = value.obj.item()
    interp.tracer.guards.equals(Applied(value.source, torch.Tensor.item, "a number of {0.base}"), number)
    return ConstantValue(number)


@replaces(torch.quantize_per_tensor)
def quantize(input, scale, zero_point, dtype):
    scale, zero_point = number_in(scale), number_in(zero_point)
    plain = input.dtype == torch.float32 and input.device.type == "cpu" and kind_of(dtype) is not None
    if not plain or isinstance(scale, torch.Tensor) or isinstance(zero_point, torch.Tensor):
        graph_break()
    return _coded(torch.round(input * inverse(scale)) + zero_point, scale, zero_point, dtype)


replaces("Quantize")(lambda module, X: quantize(X, module.scale, module.zero_point, module.dtype))
NAMED["torch.ao.nn.quantized.modules", "Quantize.forward"] = lambda at, _, *of: at.inline(at.stand_in("Quantize"), *of)


# ---------------------------------------------------------------- torch.ops.quantized


def _op(name):
    packet = getattr(torch.ops.quantized, name)
    return replaces(packet, packet.default)


def _numbers(value):
    if isinstance(value, (tuple, list)):
        return [_numbers(one) for one in value]
    return value.dequantize() if isinstance(value, Quantized) else value


_FUNCTIONS = {
    **{name: getattr(torch, name) for name in ("add", "mul", "matmul", "cat", "sigmoid", "softmax")},
    **{name: getattr(F, name) for name in "hardswish elu celu leaky_relu prelu layer_norm group_norm".split()},
    **dict.fromkeys(
        ("batch_norm", "batch_norm1d", "batch_norm2d", "batch_norm3d"),
        lambda x, weight, bias, mean, var, eps: channels_last(F.batch_norm(x, mean, var, weight, bias, eps=eps)),
    ),
    **dict.fromkeys(("conv2d", "conv3d", "linear"), lambda x, packed: packed(x)),
    "conv1d": lambda x, packed: packed(x.unsqueeze(2)).squeeze(2).contiguous(),
    "conv2d_add": lambda x, other, packed: packed(x) + other,
    "instance_norm": lambda x, weight, bias, eps: F.instance_norm(x, None, None, weight, bias, eps=eps),
}
"""Op -> what it is of numbers, without the scale and the zero point of its result."""


def _stand_in(op, function, relu):
    names = [argument.name for argument in op._schema.arguments]
    scale = next(name for name in names if name.endswith(("scale", "scale_i")))
    point = next(name for name in names if "zero_point" in name)
    rest = [name for name in names if name not in (scale, point)]

    def quantized(*args, **kwargs):
        given = dict(zip(names, args), **kwargs)  # noqa: B905  the last have defaults
        first = given[names[0]]
        first = first[0] if isinstance(first, (tuple, list)) else first
        if not isinstance(first, Quantized):
            graph_break()
        result = function(*[_numbers(given[name]) for name in rest if name in given])
        result = torch.relu(result) if relu else result
        own = given.get(scale) is None  # the first tensor's, of `cat`
        at = (first.scale, first.zero_point) if own else (given[scale], given[point])
        return quantize(result, *at, first.dtype)

    return quantized


for _name, _function in _FUNCTIONS.items():
    for _relu in (False, True):
        _packet = getattr(torch.ops.quantized, _name + "_relu" * _relu, None)
        if _packet is not None:
            _chosen = getattr(_packet, "new", None) or _packet.default
            replaces(_packet, _chosen)(_stand_in(_chosen, _function, _relu))


@_op("add_scalar")
def add_scalar(qa, b):
    _, low, high = kind_of(qa.dtype)
    point = qa.zero_point - round(b / qa.scale)
    if not low <= point <= high:
        graph_break()  # another scale
    return _quantized(qa.codes.clone(), qa.scale, point)


@_op("mul_scalar")
def mul_scalar(qa, b):
    if b <= 0:
        graph_break()
    return _quantized(qa.codes.clone(), qa.scale * b, qa.zero_point)


_op("relu6")(lambda qx, inplace=False: F.relu6(qx, inplace))
_op("clamp")(lambda qx, min=None, max=None: torch.clamp(qx, min, max))


@_op("linear_dynamic")
def linear_dynamic(X, W_prepack, reduce_range=False):
    if X.dtype != torch.float32 or X.numel() == 0:
        graph_break()
    least, most = X.amin().clamp(max=0).double(), X.amax().clamp(min=0).double()
    scale = (most - least) / (127 if reduce_range else 255)
    point = torch.where(scale > 0, torch.round(-least / scale), 0.0).clamp(0, 255).to(torch.int32)
    scale = torch.where(scale > 0, scale.clamp(min=6.1e-5), 0.1).float()  # the least one that kernels take
    codes = torch.clamp(torch.round(X * (1 / scale)) + point, 0, 255).to(torch.uint8)
    return W_prepack((codes.float() - point) * scale)


_op("linear_relu_dynamic")(lambda X, packed, reduce_range=False: torch.relu(linear_dynamic(X, packed, reduce_range)))


@_op("embedding_byte")
def embedding_byte(weight, indices, pruned_weights=False):
    rows = F.embedding(indices, weight.weight).float()
    return (rows - weight.points[indices]) * weight.scales[indices]
