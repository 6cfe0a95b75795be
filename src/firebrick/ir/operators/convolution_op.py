"""The operators of convolutions with packed constant weights, `firebrick::convolution` and its packing.

Compiled graphs have generated kernels instead of the call (`dense_kernel.py` and `depthwise_kernel.py` in
`targets/cpu`); the functions here say what they compute, for prints, the interpreter and eager kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from firebrick.ir.operators.definition import define
from firebrick.ir.operators.linear_op import ACTIVATIONS


def _pack(weight: torch.Tensor, columns: int, scale: torch.Tensor | None = None) -> torch.Tensor:
    """[outer, inner, height, width] -> [panels, height, width, inner, columns], zeros beyond the last column.

    columns 0: the weight of a depthwise convolution, [channels, 1, height, width] -> [height, width, channels].
    scale: what the weights of each outer channel are multiplied by, [outer]. Nothing but the result takes memory.
    """
    if not columns:
        packed = weight[:, 0].permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
        return packed if scale is None else packed.mul_(scale)
    outer, inner, height, width = weight.shape
    panels, whole = -(-outer // columns), outer // columns
    packed = weight.new_empty((panels, height, width, inner, columns))
    turned = packed.permute(0, 4, 3, 1, 2)  # [panels, columns, inner, height, width]
    rest = outer % columns
    turned[whole:, rest:] = 0
    for part, rows in (turned[:whole], slice(outer - rest)), (turned[whole:, :rest], slice(outer - rest, None)):
        part.copy_(weight[rows].reshape(part.shape))
        if scale is not None:
            part *= scale[rows].view(*part.shape[:2], 1, 1, 1)
    return packed


def _pack_meta(weight: torch.Tensor, columns: int, scale: torch.Tensor | None = None) -> torch.Tensor:
    """The packed weight's shape alone; torch's own kernels of shapes import sympy for a scale, 50 MiB."""
    outer, inner, height, width = weight.shape
    shape = (-(-outer // columns), height, width, inner, columns) if columns else (height, width, outer)
    return weight.new_empty(shape)


def _convolution(
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor | None,
    other: torch.Tensor | None,
    outer: int,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    attr: str,
    scalars: Sequence[float],
) -> torch.Tensor:
    """act(x * weight + bias + other), channels last; padding: zeros at the left, right, top and bottom."""
    alone = packed.dim() == 3  # each channel by itself
    weight = packed.permute(2, 0, 1).unsqueeze(1) if alone else packed.permute(0, 4, 3, 1, 2).flatten(0, 1)[:outer]
    result = F.conv2d(F.pad(x, list(padding)), weight, bias, stride, 0, dilation, outer if alone else 1)
    result = result if other is None else result + other
    return ACTIVATIONS[attr](result, *scalars).contiguous(memory_format=torch.channels_last)


convolution_op: Any = define(
    "convolution(Tensor x, Tensor packed, Tensor? bias, Tensor? other, int outer, int[] stride, int[] padding, "
    "int[] dilation, str attr, float[] scalars) -> Tensor",
    _convolution,
    out=True,
)
pack_convolution_op: Any = define(
    "pack_convolution(Tensor weight, int columns, Tensor? scale=None) -> Tensor", _pack, _pack_meta
)
