"""Layers with int8 weights on CPUs: torch.ao's, whose weights lie in objects that no graph can hold, and ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakIdKeyDictionary

_KINDS = {torch.quint8: (torch.uint8, 0, 255), torch.qint8: (torch.int8, -128, 127)}


def kind_of(dtype: torch.dtype) -> tuple[torch.dtype, int, int] | None:
    """The dtype of codes, and the least and the greatest of them; None if they are not of bytes."""
    return _KINDS.get(dtype)


def inverse(scale: float) -> float:
    """As torch's kernels have it, in float32."""
    return float(np.float32(1) / np.float32(scale))


def quantization(tensor: Tensor) -> tuple[Any, ...]:
    """How a real tensor is quantized and lies: the last two are the scale and the zero point, if it has one."""
    scheme = tensor.qscheme(), tensor.dtype, tensor.shape, tensor.stride()
    return (*scheme, tensor.q_scale(), tensor.q_zero_point()) if scheme[0] == torch.per_tensor_affine else scheme


class PackedLayer(nn.Module):
    """What torch.ao packs: a weight that stands for (weight - points) * scales. how: the numbers of a convolution,
    which are stride, padding, dilation, whether it is transposed, the output's padding and groups."""

    def __init__(self, w: Tensor, bias: Tensor | None, how: tuple[Any, ...]) -> None:
        super().__init__()
        if w.qscheme() == torch.per_tensor_affine:
            axis, scales, points = -1, torch.tensor([w.q_scale()]), torch.tensor([w.q_zero_point()])
        else:
            axis, scales, points = w.q_per_channel_axis(), w.q_per_channel_scales(), w.q_per_channel_zero_points()
        self.has_points, self.how = bool(points.any()), how
        self.weight, shape = nn.Buffer(w.int_repr().contiguous()), [-1 if d == axis else 1 for d in range(w.dim())]
        self.scales, self.points = nn.Buffer(scales.float().view(shape)), nn.Buffer(points.float().view(shape))
        self.bias = None if bias is None else nn.Buffer(bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """The layer, of numbers."""
        weight = self.weight.float()
        weight = (weight - self.points if self.has_points else weight) * self.scales
        return (
            channels_last(torch.convolution(x, weight, self.bias, *self.how))
            if self.how
            else F.linear(x, weight, self.bias)
        )


def channels_last(images: Tensor) -> Tensor:
    """Images as torch's quantized kernels lay them."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return images.contiguous(memory_format=formats.get(images.dim(), torch.preserve_format))


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
        self.inverse = nn.Buffer(1 / self.step)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution, in x's dtype."""
        images = torch.clamp(torch.round(x.float() * self.inverse) + self.point, 0, 255).to(torch.uint8)
        numbers = (images.float() - self.point) * self.step
        weight = self.weight.float() * self.scales
        return F.conv2d(numbers, weight, self.bias, self.stride, self.padding).to(x.dtype)


_unpacked: Any = WeakIdKeyDictionary()
"""Such an object -> its tensors."""


def unpacked(obj: Any) -> PackedLayer | None:
    """The tensors in an object of the classes that torch.ao's layers have; None for another's."""
    layer, kind = _unpacked.get(obj), obj._type().name().removesuffix("PackedParamsBase")
    if layer is None and kind in ("Linear", "Conv2d", "Conv3d", "Embedding"):
        w, bias = (obj.unpack(), None) if kind == "Embedding" else obj.unpack()
        if w.dtype not in (torch.qint8, torch.quint8):
            return None
        names = ("stride", "padding", "dilation", "transpose", "output_padding", "groups")
        how = tuple([getattr(obj, name)() for name in names if kind.startswith("Conv")])
        layer = _unpacked[obj] = PackedLayer(w, bias, how)
    return layer
