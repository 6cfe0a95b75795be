"""The operator of products of 8-bit integers by constant weights, `firebrick::int8_product`; its sums are exact.

Compiled graphs have a generated kernel instead of the call (`targets/cpu/int8_kernel.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def _pack(weight: torch.Tensor, columns: int) -> torch.Tensor:
    """Panels of an int8 weight [inner, outer]: pairs of products of a sum side by side, filled up with zeros."""
    inner, outer = weight.shape
    whole = F.pad(weight, (0, -outer % columns, 0, inner % 2))
    return whole.view(-1, 2, whole.shape[1] // columns, columns).permute(2, 0, 3, 1).contiguous()


def _pack_meta(weight: torch.Tensor, columns: int) -> torch.Tensor:
    inner, outer = weight.shape
    return weight.new_empty((-(-outer // columns), -(-inner // 2), columns, 2))


def _product(x: torch.Tensor, packed: torch.Tensor, outer: int) -> torch.Tensor:
    """x [rows, inner], int8 or uint8, by a packed weight [inner, outer]: int32 [rows, outer]."""
    groups, pairs, columns, _ = packed.shape
    weight = packed.permute(1, 3, 0, 2).reshape(2 * pairs, groups * columns)[: x.shape[1], :outer]
    return torch.mm(x.int(), weight.int())


def _product_out(*args: Any, out: torch.Tensor) -> torch.Tensor:
    return out.copy_(_product(*args))


def _product_meta(x: torch.Tensor, packed: torch.Tensor, outer: int) -> torch.Tensor:
    return x.new_empty((x.shape[0], outer), dtype=torch.int32)


_library = torch.library.Library("firebrick", "FRAGMENT")
_library.define("int8_product(Tensor x, Tensor packed, int outer) -> Tensor")
_library.define("int8_product.out(Tensor x, Tensor packed, int outer, *, Tensor(a!) out) -> Tensor(a!)")
_library.define("pack_int8(Tensor weight, int columns) -> Tensor")
_library.impl("int8_product", _product, "CompositeExplicitAutograd")
_library.impl("int8_product", _product_meta, "Meta")
_library.impl("int8_product.out", _product_out, "CompositeExplicitAutograd")
_library.impl("pack_int8", _pack, "CompositeExplicitAutograd")
_library.impl("pack_int8", _pack_meta, "Meta")

int8_op: Any = torch.ops.firebrick.int8_product.default
pack_int8_op: Any = torch.ops.firebrick.pack_int8.default
