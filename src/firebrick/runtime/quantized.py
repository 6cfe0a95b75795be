"""Layers with int8 weights on CPUs: torch.ao's, whose weights lie in objects that no graph can hold, and ours.

quantized::linear_dynamic(x, packed, reduce_range)   ->   firebrick::linear_dynamic(x, weight, ..., reduce_range)

The operator takes the weights as tensors and calls the very kernel, on the object that they came from where this
process has it: results have eager's bits.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

quantized = torch.ops.quantized


class PackedLinear(nn.Module):
    """What torch.ao packs: a weight that stands for (weight - points) * scales, along `axis` unless it is -1."""

    def __init__(self, weight: Tensor, scales: Tensor, points: Tensor, axis: int, bias: Tensor | None) -> None:
        super().__init__()
        self.axis = axis
        self.weight, self.scales, self.points = map(nn.Buffer, (weight, scales.double(), points.long()))
        self.bias = None if bias is None else nn.Buffer(bias.detach())


class Int8Conv2d(nn.Module):
    """A convolution by int8 weights, a scale an output, of images of a range, which another scale makes bytes.

    Spelled in multiples of scales, of which compilers make a product of bytes; 128 is zero if images have negatives.
    """

    def __init__(self, layer: nn.Conv2d, least: float, most: float) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scales = (weight.abs().amax((1, 2, 3), keepdim=True) / 127).clamp_min(1e-12)
        self.weight, self.scales = nn.Buffer(torch.round(weight / scales).to(torch.int8)), nn.Buffer(scales)
        self.bias = None if layer.bias is None else nn.Buffer(layer.bias.detach().float())
        self.point, self.stride, self.padding = 128 if least < 0 else 0, layer.stride, layer.padding
        self.step = nn.Buffer(torch.tensor(max(-least, most) / (255 - self.point)).clamp_min(1e-12))

    def forward(self, x: Tensor) -> Tensor:
        """The convolution, in x's dtype."""
        images = torch.clamp(torch.round(x.float() / self.step) + self.point, 0, 255).to(torch.uint8)
        numbers = (images.float() - self.point) * self.step
        weight = self.weight.float() * self.scales
        return F.conv2d(numbers, weight, self.bias, self.stride, self.padding).to(x.dtype)


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


def _linear_dynamic(
    x: Tensor, w: Tensor, scales: Tensor, points: Tensor, bias: Tensor | None, axis: int, reduce_range: bool, relu: bool
) -> Tensor:
    packed = _packed.get(w, lambda: None)()
    if packed is None:
        if axis < 0:
            whole = torch._make_per_tensor_quantized_tensor(w, scales.item(), int(points.item()))
        else:
            whole = torch._make_per_channel_quantized_tensor(w, scales, points, axis)
        packed = quantized.linear_prepack(whole, bias)
        _packed[w] = lambda: packed
    return (quantized.linear_relu_dynamic if relu else quantized.linear_dynamic)(x, packed, reduce_range)


def _shape(x: Tensor, weight: Tensor, *_: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=torch.float32)


_library = torch.library.Library("firebrick", "FRAGMENT")
_library.define(
    "linear_dynamic(Tensor x, Tensor weight, Tensor scales, Tensor points, Tensor? bias, int axis, bool reduce_range, "
    "bool relu) -> Tensor"
)
_library.impl("linear_dynamic", _linear_dynamic, "CPU")
_library.impl("linear_dynamic", _shape, "Meta")
