"""The operator of products of 8-bit integers by constant weights, `firebrick::int8_product`; its sums are exact.

Compiled graphs have a generated kernel instead of the call (`targets/cpu/int8_kernel.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from firebrick.ir.operators.definition import define


def _pack(weight: torch.Tensor, columns: int, depth: int) -> torch.Tensor:
    """Panels of an int8 weight [inner, outer]: `depth` products of a sum side by side, filled up with zeros.

    Four are meant for numbers raised by 128: in front of a panel lies what takes that out of the sums, in 32 bits.
    """
    inner, outer = weight.shape
    whole = F.pad(weight, (0, -outer % columns, 0, -inner % depth))
    panels = whole.view(-1, depth, whole.shape[1] // columns, columns).permute(2, 0, 3, 1)
    if depth < 4:
        return panels.contiguous()
    raised = (whole.sum(0, dtype=torch.int32) * -128).view(torch.int8)
    return torch.cat([raised.view(-1, 1, columns, depth), panels], 1)


def _pack_meta(weight: torch.Tensor, columns: int, depth: int) -> torch.Tensor:
    inner, outer = weight.shape
    return weight.new_empty((-(-outer // columns), -(-inner // depth) + depth // 4, columns, depth))


def _product(x: torch.Tensor, packed: torch.Tensor, outer: int) -> torch.Tensor:
    """x [rows, inner], int8 or uint8, by a packed weight [inner, outer]: int32 [rows, outer]."""
    panels = packed[:, packed.shape[3] // 4 :]
    groups, steps, columns, depth = panels.shape
    weight = panels.permute(1, 3, 0, 2).reshape(depth * steps, groups * columns)[: x.shape[1], :outer]
    return torch.mm(x.int(), weight.int())


int8_op: Any = define(
    "int8_product(Tensor x, Tensor packed, int outer) -> Tensor",
    _product,
    lambda x, packed, outer: x.new_empty((x.shape[0], outer), dtype=torch.int32),
    out=True,
)
pack_int8_op: Any = define("pack_int8(Tensor weight, int columns, int depth) -> Tensor", _pack, _pack_meta)
