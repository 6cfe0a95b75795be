"""The dtype that operands of an op are computed in (https://pytorch.org/docs/stable/tensor_attributes.html)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class NoRule(Exception):
    """The meta kernel has to answer."""


def category_of(number: Any) -> torch.dtype:
    """Return the dtype of a tensor made from a Python number."""
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, (int, torch.SymInt)):
        return torch.int64
    if isinstance(number, (float, torch.SymFloat)):
        return torch.get_default_dtype()
    raise NoRule


def _combine(higher: torch.dtype | None, lower: torch.dtype | None) -> torch.dtype | None:
    if higher is None or lower is None:
        return higher or lower
    if higher.is_complex or lower.is_complex:
        raise NoRule
    if higher.is_floating_point:
        return higher
    if higher is torch.bool or lower.is_floating_point:
        return torch.promote_types(higher, lower)
    return higher


def promote(operands: Sequence[Any]) -> torch.dtype:
    """Return the dtype that operands are computed in: tensors before 0-dimensional ones before numbers."""
    first = operands[0]
    if len(operands) == 1 or all(isinstance(o, torch.Tensor) and o.dtype == first.dtype for o in operands):
        dtype_of_all: torch.dtype = first.dtype
        if dtype_of_all.is_complex:
            raise NoRule
        return dtype_of_all
    ranks: list[torch.dtype | None] = [None, None, None]
    for operand in operands:
        if isinstance(operand, torch.Tensor):
            rank, dtype = (0 if operand.dim() else 1), operand.dtype
        else:
            rank, dtype = 2, category_of(operand)
        before = ranks[rank]
        ranks[rank] = dtype if before is None else torch.promote_types(before, dtype)
    result = _combine(_combine(ranks[0], ranks[1]), ranks[2])
    if result is None or result.is_complex:
        raise NoRule
    return result


def as_float(dtype: torch.dtype) -> torch.dtype:
    """Return what ops with floating-point results compute in."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def ops(names: str) -> frozenset[Any]:
    """Operators of ATen by their names."""
    pairs = [name.split(".") for name in names.split()]
    return frozenset([getattr(getattr(torch.ops.aten, name), overload) for name, overload in pairs])
