"""The tables of dtypes, scalar functions and reductions agree with torch and with themselves."""

from __future__ import annotations

import pytest
import torch

from firebrick.ir.loops.dtypes import BY_TORCH, DTYPES
from firebrick.ir.loops.scalar_ops import REDUCTIONS, SCALAR_OPS, reduction_identity, result_dtype

COMPUTED = [row for row in DTYPES.values() if row.loops]


@pytest.mark.parametrize("row", DTYPES.values(), ids=lambda row: row.name)
def test_dtype_row(row) -> None:
    assert row.torch.itemsize == row.nbytes
    assert BY_TORCH[row.torch] is row
    assert BY_TORCH[row.torch].name == row.name
    if row.is_int:
        info = torch.iinfo(row.torch)
        assert (row.lo, row.hi) == (info.min, info.max)


@pytest.mark.parametrize(
    "op", [op for op in SCALAR_OPS.values() if op.name not in ("to", "drawn")], ids=lambda op: op.name
)
def test_scalar_op(op) -> None:
    for row in COMPUTED:
        if row.kind not in op.takes.split():
            continue
        args = [torch.tensor([0, 1, 1]).to(row.torch)] * op.arity
        if op.name == "where":
            args[0] = torch.tensor([True, False, True])
        result = op.reference(*args)
        assert BY_TORCH[result.dtype].name == result_dtype(op.name, row.name), row.name


@pytest.mark.parametrize("reduction", REDUCTIONS.values(), ids=lambda r: r.name)
def test_reduction(reduction) -> None:
    for row in COMPUTED:
        if row.kind not in reduction.takes.split():
            continue
        data = torch.tensor([[0, 1, 1], [1, 0, 0]]).to(row.torch)
        result = reduction.reference(data)
        assert BY_TORCH[result.dtype].name == {"same": row.name, "bool": "b8", "i64": "i64"}[reduction.result]
        start = torch.tensor(reduction_identity(reduction.name, row.name)).to(row.torch)
        if reduction.combine:
            padded = torch.cat([start.expand(2, 1), data], 1)
            assert torch.equal(reduction.reference(padded), result)
            assert SCALAR_OPS[reduction.combine].arity == 2
