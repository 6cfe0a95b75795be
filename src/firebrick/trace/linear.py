"""Whether gradients are linear in those that they are made of: a custom `autograd.Function` may compute anything."""

from __future__ import annotations

from collections.abc import Container, Iterable

import torch

from firebrick.trace.tape import Record, map_records

_SUMS = """
    add sub neg view expand permute transpose t squeeze unsqueeze slice select clone _to_copy sum mean cat stack flip
    roll diagonal alias detach as_strided cumsum tril triu constant_pad_nd repeat _conj conj_physical real imag
    view_as_real view_as_complex slice_scatter select_scatter
"""
"""Operators that are linear in all their tensors together."""

_PRODUCTS = "mul mm bmm convolution outer dot mv"
"""Operators that are linear in each of their tensors."""

_MADE = "zeros_like ones_like full_like empty_like new_zeros new_ones new_full full scalar_tensor"
"""Operators that read no numbers."""


def nonlinear(records: Iterable[Record], tangents: Iterable[Record], within: Container[int]) -> list[int]:
    """Positions, of those `within`, of calls that are not certainly linear in what is made of the tangents."""
    flowing = {id(record) for record in tangents}
    positions = []
    for i, record in enumerate(records):
        used: list[Record] = []
        map_records((record.args, record.kwargs), used.append)
        if flowing.isdisjoint(map(id, used)) or _name(record) in _MADE.split():
            continue
        flowing.add(id(record))
        if i in within and not _is_linear(record, [id(r) in flowing for r in used], used):
            positions.append(i)
    return positions


def _name(record: Record) -> str:
    aten = isinstance(record.op, torch._ops.OpOverload) and record.op.namespace == "aten"
    return record.op._opname if aten else ""


def _is_linear(record: Record, flows: list[bool], used: list[Record]) -> bool:
    name = _name(record)
    if not name:
        return True  # nobody can look into it
    sums = [f or _is_zero(r) for f, r in zip(flows, used, strict=True)]
    if name in _SUMS.split():
        return all(sums) and not (name in ("add", "sub") and len(used) < 2)
    if name in _PRODUCTS.split():
        return sum(flows) == 1
    if name == "where":
        return not flows[0] and all(sums[1:])
    return (name in ("div", "index", "gather", "index_select") or name.endswith("_backward")) and sum(flows) == flows[0]


def _is_zero(record: Record) -> bool:
    name = _name(record)
    return "zeros" in name or (name in _MADE.split() and 0 in record.args[:2])
