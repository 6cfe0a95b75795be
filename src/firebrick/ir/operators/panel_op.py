"""The operators of products by packed weights, `firebrick::panel_product`, also under the windows of images.

Compiled graphs have a generated kernel instead of the call (`targets/cpu/panel_kernel.py`)."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from firebrick.ir.operators.definition import define
from firebrick.ir.operators.linear_op import ACTIVATIONS


def _pack(weight: Tensor, columns: int, depth: int) -> Tensor:
    """Panels of a weight, filled up with zeros; before one for bytes raised by 128, of depth 4, what undoes that.

    Rows of a convolution's are the channels under each place of its window.
    """
    weight = weight.permute(2, 3, 1, 0).flatten(0, 2) if weight.dim() == 4 else weight
    inner, outer = weight.shape
    whole = F.pad(weight, (0, -outer % columns, 0, -inner % (16 * depth)))
    panels = whole.view(-1, depth, whole.shape[1] // columns, columns).permute(2, 0, 3, 1)
    if depth < 4:
        return panels.contiguous()
    raised = (whole.sum(0, dtype=torch.int32) * -128).view(torch.int8)
    return torch.cat([raised.view(-1, 1, columns, depth), panels], 1)


def _unpack(w: Tensor, inner: int, outer: int) -> Tensor:
    panels = w[:, w.shape[3] // 4 :]
    groups, steps, columns, depth = panels.shape
    return panels.permute(1, 3, 0, 2).reshape(depth * steps, groups * columns)[:inner, :outer]


def _product(x: Tensor, w: Tensor, outer: int, bias: Any = None, attr: str = "none", scalars: Any = ()) -> Tensor:
    """x [rows, inner] by packed w: of bytes exact sums; of bfloat16 plus float32 bias, activated, rounded once."""
    weight = _unpack(w, x.shape[1], outer)
    if x.dtype is not torch.bfloat16:
        return torch.mm(x.int(), weight.int())
    result = torch.mm(x.float(), weight.float())
    return ACTIVATIONS[attr](result if bias is None else result + bias, *scalars).bfloat16()


def _convolution(
    x: Tensor, w: Tensor, outer: int, bias: Any, attr: str, scalars: Any, scale: Any, other: Any, window: Any, *how: Any
) -> Tensor:
    """act(convolution(x, w) * scale + bias + other) of bfloat16 x and other, channels last, rounded once.

    w: panels of the weight whose rows are the channels under each place of the window.
    """
    weight = _unpack(w, math.prod(window) * x.shape[1], outer).view(*window, x.shape[1], outer).permute(3, 2, 0, 1)
    result = F.conv2d(x.float(), weight.float(), None, *how)
    result = result if scale is None else result * scale.view(-1, 1, 1)
    result = result if bias is None else result + bias.view(-1, 1, 1)
    result = ACTIVATIONS[attr](result if other is None else result + other, *scalars)
    return result.bfloat16().contiguous(memory_format=torch.channels_last)


panel_op: Any = define(
    "panel_product(Tensor x, Tensor w, int outer, Tensor? bias=None, str attr='none', float[] scalars=[]) -> Tensor",
    _product,
    lambda x, _, outer, *__: x.new_empty((x.shape[0], outer), dtype=None if x.is_floating_point() else torch.int32),
    out=True,
)
panel_convolution_op: Any = define(
    "panel_convolution(Tensor x, Tensor w, int outer, Tensor? bias, str attr, float[] scalars, Tensor? scale, "
    "Tensor? other, int[] window, int[] stride, int[] padding, int[] dilation) -> Tensor",
    _convolution,
    out=True,
)
pack_panels_op: Any = define("pack_panels(Tensor weight, int columns, int depth) -> Tensor", _pack)
