"""Linear layers with int8 weights on CPUs: torch.ao's, whose weights lie in objects that no graph can hold, and ours.

quantized::linear_dynamic(x, packed, reduce_range)   ->   firebrick::linear_dynamic(x, weight, ..., reduce_range)

The operator takes the weights as tensors and calls the very kernel, on the object that they came from where this
process has it: results have eager's bits.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

quantized = torch.ops.quantized


class PackedLinear(nn.Module):
    """A linear layer whose weight is int8, and whose input is quantized as it comes, with one scale.

    scales, points: of the weight, times and minus which it is a number; along `axis`, or one if that is -1. As in
    torch.ao the input has 7 bits, since two products of 8 overflow on processors without instructions for such sums.
    """

    def __init__(self, weight: Tensor, scales: Tensor, points: Tensor, axis: int, bias: Tensor | None) -> None:
        super().__init__()
        self.axis, (self.out_features, self.in_features) = axis, weight.shape
        self.weight, self.scales, self.points = map(nn.Buffer, (weight, scales.double(), points.long()))
        self.bias = None if bias is None else nn.Buffer(bias.detach())

    @classmethod
    def of(cls, layer: nn.Linear) -> PackedLinear:
        """A layer's weight, rounded to a multiple of a scale for each output."""
        weight = layer.weight.detach().float()
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-12)
        rounded = torch.round(weight / scales[:, None]).to(torch.int8)
        bias = None if layer.bias is None else layer.bias.detach().float().clone()
        return cls(rounded, scales, torch.zeros(len(scales)), 0, bias)

    def forward(self, x: Tensor) -> Tensor:
        """x @ weight.T + bias, in x's dtype."""
        parts = (self.weight, self.scales, self.points, self.bias, self.axis)
        result: Tensor = torch.ops.firebrick.linear_dynamic(x.float(), *parts, True, False)
        return result.to(x.dtype)


_packed: Any = WeakTensorKeyDictionary()
"""Weight -> what gives the object that it was taken from, as long as a model has it, or that was made of it."""
_unpacked: Any = WeakIdKeyDictionary()
"""Such an object -> its tensors."""


def unpacked(obj: Any) -> PackedLinear | None:
    """The tensors in an object of the class that torch.ao's dynamic linear layers have; None for another's."""
    layer = _unpacked.get(obj)
    if layer is None and obj._type().name() == "LinearPackedParamsBase":
        w, bias = obj.unpack()
        if w.dtype is not torch.qint8:
            return None
        if w.qscheme() == torch.per_tensor_affine:
            rows = (torch.tensor([w.q_scale()]), torch.tensor([w.q_zero_point()]), -1)
        else:
            rows = (w.q_per_channel_scales(), w.q_per_channel_zero_points(), w.q_per_channel_axis())
        layer = _unpacked[obj] = PackedLinear(w.int_repr(), *rows, bias)
        _packed[layer.weight] = weakref.ref(obj)
    return layer


def _nothing(packed: Any = None) -> Any:
    return packed


def _linear_dynamic(
    x: Tensor, w: Tensor, scales: Tensor, points: Tensor, bias: Tensor | None, axis: int, reduce_range: bool, relu: bool
) -> Tensor:
    packed = _packed.get(w, _nothing)()
    if packed is None:
        if axis < 0:
            whole = torch._make_per_tensor_quantized_tensor(w, scales.item(), int(points.item()))
        else:
            whole = torch._make_per_channel_quantized_tensor(w, scales, points, axis)
        packed = quantized.linear_prepack(whole, bias)
        _packed[w] = partial(_nothing, packed)
    result: Tensor = (quantized.linear_relu_dynamic if relu else quantized.linear_dynamic)(x, packed, reduce_range)
    return result


def _shape(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=torch.float32)


_library = torch.library.Library("firebrick", "FRAGMENT")
_library.define(
    "linear_dynamic(Tensor x, Tensor weight, Tensor scales, Tensor points, Tensor? bias, int axis, bool reduce_range, "
    "bool relu) -> Tensor"
)
_library.impl("linear_dynamic", _linear_dynamic, "CPU")
_library.impl("linear_dynamic", _shape, "Meta")
