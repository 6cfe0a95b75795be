"""The operator of products by weights that were packed ahead of time, `firebrick::panel_product`.

Compiled graphs have a generated kernel instead of the call (`targets/cpu/panel_kernel.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from firebrick.ir.operators.definition import define
from firebrick.ir.operators.linear_op import ACTIVATIONS

_RESULTS = {torch.bfloat16: torch.bfloat16}


def _pack(weight: Tensor, columns: int, depth: int) -> Tensor:
    """Panels of a weight [inner, outer]: `depth` products of a sum side by side, filled up with zeros to 16 of these.

    Four are meant for bytes raised by 128: in front of a panel lies what takes that out of the sums, in 32 bits.
    """
    inner, outer = weight.shape
    whole = F.pad(weight, (0, -outer % columns, 0, -inner % (16 * depth)))
    panels = whole.view(-1, depth, whole.shape[1] // columns, columns).permute(2, 0, 3, 1)
    if depth < 4:
        return panels.contiguous()
    raised = (whole.sum(0, dtype=torch.int32) * -128).view(torch.int8)
    return torch.cat([raised.view(-1, 1, columns, depth), panels], 1)


def _pack_meta(weight: Tensor, columns: int, depth: int) -> Tensor:
    inner, outer = weight.shape
    return weight.new_empty((-(-outer // columns), -(-inner // (16 * depth)) * 16 + depth // 4, columns, depth))


def _product(x: Tensor, packed: Tensor, outer: int, bias: Any = None, attr: str = "none", scalars: Any = ()) -> Tensor:
    """x [rows, inner] by a packed weight [inner, outer]: of bytes by int8 the sums, int32 and exact; of bfloat16 the
    sums plus a float32 bias, activated and rounded once."""
    panels = packed[:, packed.shape[3] // 4 :]
    groups, steps, columns, depth = panels.shape
    weight = panels.permute(1, 3, 0, 2).reshape(depth * steps, groups * columns)[: x.shape[1], :outer]
    if x.dtype is not torch.bfloat16:
        return torch.mm(x.int(), weight.int())
    result = torch.mm(x.float(), weight.float())
    return ACTIVATIONS[attr](result if bias is None else result + bias, *scalars).bfloat16()


panel_op: Any = define(
    "panel_product(Tensor x, Tensor packed, int outer, Tensor? bias=None, str attr='none', float[] scalars=[]) "
    "-> Tensor",
    _product,
    lambda x, _, outer, *__: x.new_empty((x.shape[0], outer), dtype=_RESULTS.get(x.dtype, torch.int32)),
    out=True,
)
pack_panels_op: Any = define("pack_panels(Tensor weight, int columns, int depth) -> Tensor", _pack, _pack_meta)
