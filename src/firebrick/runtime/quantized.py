"""Linear layers of `torch.ao` with int8 weights, whose weights lie in objects that no graph can hold.

quantized::linear_dynamic(x, packed, reduce_range)   ->   firebrick::linear_dynamic(x, weight, ..., reduce_range)

The operator takes the weights as tensors and calls the very kernel, on the object that they came from where this
process has it: results have eager's bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

quantized = torch.ops.quantized


class PackedLinear(nn.Module):
    """A linear layer whose weight is int8, and whose input is quantized as it comes, with one scale.

    scales, points: of the weight, times and minus which it is a number; along `axis`, or one if that is -1. As in
    torch.ao the input has 7 bits, since two products of 8 overflow on processors without instructions for such sums.
    """

    def __init__(
        self, weight: torch.Tensor, scales: torch.Tensor, points: torch.Tensor, axis: int, bias: torch.Tensor | None
    ) -> None:
        super().__init__()
        self.axis, (self.out_features, self.in_features) = axis, weight.shape
        self.weight, self.scales, self.points = map(nn.Buffer, (weight, scales.double(), points.long()))
        self.bias = None if bias is None else nn.Buffer(bias.detach())

    @classmethod
    def of_quantized(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> PackedLinear:
        """That of a quantized tensor."""
        if weight.qscheme() == torch.per_tensor_affine:
            scale, point = torch.tensor([weight.q_scale()]), torch.tensor([weight.q_zero_point()])
            return cls(weight.int_repr(), scale, point, -1, bias)
        scales, points = weight.q_per_channel_scales(), weight.q_per_channel_zero_points()
        return cls(weight.int_repr(), scales, points, weight.q_per_channel_axis(), bias)

    @classmethod
    def of(cls, layer: nn.Linear) -> PackedLinear:
        """A layer's weight, rounded to a multiple of a scale for each output."""
        weight = layer.weight.detach().float()
        scales = (weight.abs().amax(1) / 127).clamp_min(1e-12)
        rounded = torch.round(weight / scales[:, None]).to(torch.int8)
        bias = None if layer.bias is None else layer.bias.detach().float().clone()
        return cls(rounded, scales, torch.zeros(len(scales)), 0, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x @ weight.T + bias, in x's dtype."""
        parts = (self.weight, self.scales, self.points, self.bias, self.axis)
        result: torch.Tensor = torch.ops.firebrick.linear_dynamic(x.float(), *parts, True, False)
        return result.to(x.dtype)

    def extra_repr(self) -> str:
        """What print shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, int8"


_packed: Any = WeakTensorKeyDictionary()
"""Weight -> the object that it was taken from, or that was made of it."""
_unpacked: Any = WeakIdKeyDictionary()
"""Such an object -> its tensors."""


def unpacked(obj: Any) -> PackedLinear | None:
    """The tensors in an object of the class that torch.ao's dynamic linear layers have; None for another's."""
    found = _unpacked.get(obj)
    if found is None and obj._type().name() == "LinearPackedParamsBase":
        weight, bias = obj.unpack()
        if weight.dtype is torch.qint8:
            found = _unpacked[obj] = PackedLinear.of_quantized(weight, bias)
            _packed[found.weight] = obj
    return found


def _linear_dynamic(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    points: torch.Tensor,
    bias: torch.Tensor | None,
    axis: int,
    reduce_range: bool,
    relu: bool,
) -> torch.Tensor:
    packed = _packed.get(weight)
    if packed is None:
        if axis < 0:
            whole = torch._make_per_tensor_quantized_tensor(weight, scales.item(), int(points.item()))
        else:
            whole = torch._make_per_channel_quantized_tensor(weight, scales, points, axis)
        packed = _packed[weight] = quantized.linear_prepack(whole, bias)
    call = quantized.linear_relu_dynamic if relu else quantized.linear_dynamic
    result: torch.Tensor = call(x, packed, reduce_range)
    return result


def _shape(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=torch.float32)


_library = torch.library.Library("firebrick", "FRAGMENT")
_library.define(
    "linear_dynamic(Tensor x, Tensor weight, Tensor scales, Tensor points, Tensor? bias, int axis, bool reduce_range, "
    "bool relu) -> Tensor"
)
_library.impl("linear_dynamic", _linear_dynamic, "CPU")
_library.impl("linear_dynamic", _shape, "Meta")
