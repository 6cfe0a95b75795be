"""The operator of products by packed weights, `firebrick::panel_product`.

Compiled graphs have a generated kernel instead of the call (`targets/cpu/panel_kernel.py`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from firebrick.ir.operators.definition import define
from firebrick.ir.operators.linear_op import ACTIVATIONS


def _pack(weight: Tensor, columns: int, depth: int) -> Tensor:
    """Panels of a weight, filled up with zeros; before one for bytes raised by 128, of depth 4, what undoes that."""
    inner, outer = weight.shape
    whole = F.pad(weight, (0, -outer % columns, 0, -inner % (16 * depth)))
    panels = whole.view(-1, depth, whole.shape[1] // columns, columns).permute(2, 0, 3, 1)
    if depth < 4:
        return panels.contiguous()
    raised = (whole.sum(0, dtype=torch.int32) * -128).view(torch.int8)
    return torch.cat([raised.view(-1, 1, columns, depth), panels], 1)


def _product(x: Tensor, w: Tensor, outer: int, bias: Any = None, attr: str = "none", scalars: Any = ()) -> Tensor:
    """x [rows, inner] by packed w: of bytes exact sums; of bfloat16 plus float32 bias, activated, rounded once."""
    panels = w[:, w.shape[3] // 4 :]
    groups, steps, columns, depth = panels.shape
    weight = panels.permute(1, 3, 0, 2).reshape(depth * steps, groups * columns)[: x.shape[1], :outer]
    if x.dtype is not torch.bfloat16:
        return torch.mm(x.int(), weight.int())
    result = torch.mm(x.float(), weight.float())
    return ACTIVATIONS[attr](result if bias is None else result + bias, *scalars).bfloat16()


panel_op: Any = define(
    "panel_product(Tensor x, Tensor w, int outer, Tensor? bias=None, str attr='none', float[] scalars=[]) -> Tensor",
    _product,
    lambda x, _, outer, *__: x.new_empty((x.shape[0], outer), dtype=None if x.is_floating_point() else torch.int32),
    out=True,
)
pack_panels_op: Any = define("pack_panels(Tensor weight, int columns, int depth) -> Tensor", _pack)
