"""Rules of normalizations: statistics in two passes, then one formula."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from firebrick.ir.index.expr import ZERO, Expr, as_expr
from firebrick.ir.loops.constructors import cast, constant, op
from firebrick.ir.loops.dtypes import BY_TORCH, DTYPES
from firebrick.ir.loops.program import Value
from firebrick.lower.context import Lowering, rules, shape_of
from firebrick.lower.reductions import mean_and_variance
from firebrick.lower.tensors import TensorValue, contiguous_strides
from firebrick.lower.views import reshape_map

aten = torch.ops.aten

RULES, _rule = rules()


def _reciprocal_root(variance: Value, eps: float) -> Value:
    shifted = op("add", variance, constant(eps, variance.dtype))
    return op("div", constant(1.0, variance.dtype), op("sqrt", shifted))


def _rstd(lw: Lowering, variance: TensorValue, eps: float) -> TensorValue:
    """1/sqrt(variance + eps), stored: it is read by each element of its row."""
    rstd = TensorValue(
        variance.shape,
        variance.dtype,
        variance.strides,
        formula=lambda index: _reciprocal_root(variance.at(index), eps),
        cost=8,
    )
    lw.realize(rstd)
    return rstd


def _as(lw: Lowering, value: TensorValue, fake: torch.Tensor) -> TensorValue:
    """A statistic as the op returns it: in the shape and dtype of `fake`."""
    move = reshape_map(value.shape, shape_of(fake))
    dtype = BY_TORCH[fake.dtype].name
    return lw.formula(lambda index: cast(value.at(move(index)), dtype), 1, fake)


@_rule(aten.native_layer_norm.default)
def _layer_norm(
    lw: Lowering,
    x: TensorValue,
    normalized: Sequence[int],
    weight: TensorValue | None,
    bias: TensorValue | None,
    eps: float,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    val, mean_val, rstd_val = lw.node.meta["val"]
    out, compute = BY_TORCH[val.dtype].name, DTYPES[x.dtype].accumulate
    k = x.rank - len(normalized)
    mean, variance = mean_and_variance(lw, x, range(k, x.rank), compute)
    rstd = _rstd(lw, variance, eps)

    def formula(index: tuple[Expr, ...]) -> Value:
        row = (*index[:k], *[ZERO] * (x.rank - k))
        v = op("mul", op("sub", cast(x.at(index), compute), mean.at(row)), rstd.at(row))
        return cast(_affine(v, index[k:], weight, bias), out)

    return lw.formula(formula, 6 + x.cost, val), _as(lw, mean, mean_val), _as(lw, rstd, rstd_val)


def _affine(v: Value, at: tuple[Expr, ...], weight: TensorValue | None, bias: TensorValue | None) -> Value:
    if weight is not None:
        v = op("mul", v, cast(weight.at(at), v.dtype))
    return v if bias is None else op("add", v, cast(bias.at(at), v.dtype))


@_rule(aten.native_group_norm.default)
def _group_norm(
    lw: Lowering,
    x: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
) -> tuple[TensorValue, TensorValue, TensorValue]:
    val, mean_val, rstd_val = lw.node.meta["val"]
    out, compute = BY_TORCH[val.dtype].name, DTYPES[x.dtype].accumulate
    lw.share(x)
    width = channels // groups
    # Split the channels only, so that other dimensions are read in their own order.
    split = (x.shape[0], as_expr(groups), as_expr(width), *x.shape[2:])
    inward = reshape_map(x.shape, split)
    grouped = TensorValue(
        split, x.dtype, contiguous_strides(split), formula=lambda index: x.at(inward(index)), cost=x.cost
    )
    mean, variance = mean_and_variance(lw, grouped, range(2, len(split)), compute)
    rstd = _rstd(lw, variance, eps)

    def formula(index: tuple[Expr, ...]) -> Value:
        row = (index[0], index[1] // width, *[ZERO] * (len(split) - 2))
        v = op("mul", op("sub", cast(x.at(index), compute), mean.at(row)), rstd.at(row))
        return cast(_affine(v, (index[1],), weight, bias), out)

    return lw.formula(formula, 6 + x.cost, val), _as(lw, mean, mean_val), _as(lw, rstd, rstd_val)
