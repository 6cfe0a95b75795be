"""Rules of scans: each element is folded with those before it along one dimension, in order, as in eager's kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from firebrick.ir.index.expr import ONE, ZERO, Expr, total
from firebrick.ir.loops.constructors import cast, constant, from_zero, index_value, op, running, where
from firebrick.ir.loops.dtypes import BY_TORCH, DTYPES
from firebrick.ir.loops.program import Ref, Store, Value
from firebrick.lower.context import Declined, Lowering, count_of, dense_strides, strides_of
from firebrick.lower.tensors import TensorValue

aten = torch.ops.aten

_WIDE = {"f32": "f64", "bf16": "f32", "f16": "f32"}
"""Dtype of a result -> what eager's sums and products run in; others run in their own."""


def _scan(
    lw: Lowering, x: TensorValue, dim: int, fake: torch.Tensor, value: Callable[[tuple[Expr, ...], Expr], Value]
) -> TensorValue:
    """A tensor of x's shape in a nest of its own; `value` gets the index and the loop that it runs along."""
    dtype, strides = BY_TORCH[fake.dtype].name, dense_strides(x.shape, strides_of(fake))
    ref = Ref(lw.buffer(dtype, x.shape, strides), x.shape, strides, ZERO)
    if ZERO not in x.shape:
        axes, index = lw.axes(x.shape, strides)
        at = total(i * s for i, s in zip(index, strides, strict=True))
        lw.nest(axes, Store(ref.buffer, at, cast(value(index, index[dim % x.rank] if x.rank else ZERO), dtype)))
    return TensorValue(x.shape, dtype, strides, ref=ref)


def _fold(name: str, lw: Lowering, x: TensorValue, dim: int, *, dtype: torch.dtype | None = None) -> TensorValue:
    if name == "logsumexp" and not DTYPES[x.dtype].is_float:
        raise Declined
    fake = lw.node.meta["val"]
    out = BY_TORCH[fake.dtype].name
    wide = _WIDE.get(out, out)

    def value(i: tuple[Expr, ...], along: Expr) -> Value:
        total = running(name, along, cast(cast(x.at(i), out), wide))
        return from_zero(total) if name == "sum" and along is ZERO and x.rank else total

    return _scan(lw, x, dim, fake, value)


def _best(name: str, lw: Lowering, x: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    """The best so far, and where it is: the last of equals, and the last NaN once there is one."""
    compute = DTYPES[x.dtype].compute
    if compute == "b8":
        raise Declined
    if x.rank and strides_of(lw.node.meta["val"][0])[dim % x.rank] is ONE and len(lw.used) > 1:
        # Along a row the library keeps the best and its place with one comparison.
        lw.prefer(6.0, 5.0, count_of(lw.node.meta["val"][0]))
    lw.share(x)
    values, places = lw.node.meta["val"]
    best = _scan(lw, x, dim, values, lambda i, along: running(name, along, cast(x.at(i), compute)))

    def place(i: tuple[Expr, ...], along: Expr) -> Value:
        element = cast(x.at(i), compute)
        improves = op("eq", element, running(name, along, element))
        if DTYPES[compute].is_float:
            improves = op("or", improves, op("isnan", element))
        return running("max", along, where(improves, index_value(along), constant(0, "i64")))

    return best, _scan(lw, x, dim, places, place)


RULES: dict[Any, Callable[..., Any]] = {
    aten.cumsum.default: partial(_fold, "sum"),
    aten.cumprod.default: partial(_fold, "prod"),
    aten.logcumsumexp.default: partial(_fold, "logsumexp"),
    aten.cummax.default: partial(_best, "max"),
    aten.cummin.default: partial(_best, "min"),
}
