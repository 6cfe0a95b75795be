"""Rules that create tensors from indices, join tensors, and read or write parts at places that the graph knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from firebrick.ir.index.expr import ONE, ZERO, Expr, as_expr
from firebrick.ir.index.sizes import FloatNode
from firebrick.ir.loops.constructors import TRUE, cast, constant, index_value, masked, op, where
from firebrick.ir.loops.dtypes import BY_TORCH, DTYPES
from firebrick.ir.loops.program import Ref, Value
from firebrick.lower.context import Declined, Lowering, end_of, place_of, rules, shape_of, strides_of
from firebrick.lower.cuda_parts import MASKED, masked_parts, within
from firebrick.lower.pointwise import float_value
from firebrick.lower.tensors import TensorValue

aten = torch.ops.aten
prims = torch.ops.prims

RULES, _rule = rules()


def _out(lw: Lowering) -> str:
    return BY_TORCH[lw.node.meta["val"].dtype].name


# ---------------------------------------------------------------- creation


@_rule(aten.full.default, aten.full_like.default, aten.scalar_tensor.default)
def _full(lw: Lowering, *args: Any, **_kwargs: Any) -> TensorValue:
    return _filled(lw, args[-1])


def _filled(lw: Lowering, value: Any) -> TensorValue:
    dtype = _out(lw)
    if isinstance(value, Expr):
        return lw.formula(lambda _: cast(index_value(value), dtype), 1)
    if isinstance(value, FloatNode) and DTYPES[dtype].is_float:
        return lw.formula(lambda _: cast(float_value(value.formula), dtype), 1)
    if not isinstance(value, (bool, int, float)):
        raise Declined
    if not DTYPES[dtype].is_float and isinstance(value, float) and not math.isfinite(value):
        raise Declined
    filled = constant(value, dtype)
    return lw.formula(lambda _: filled, 0)


@_rule(aten.arange.default, aten.arange.start, aten.arange.start_step)
def _arange(lw: Lowering, *args: float, **_kwargs: Any) -> TensorValue:
    start, step = args[0] if len(args) > 1 else 0, args[2] if len(args) > 2 else 1
    dtype = _out(lw)
    if isinstance(start, (int, Expr)) and isinstance(step, (int, Expr)):
        return lw.formula(lambda index: cast(index_value(index[0] * step + start), dtype), 1)
    if not DTYPES[dtype].is_float:
        raise Declined

    def formula(index: tuple[Expr, ...]) -> Value:
        steps = cast(index_value(index[0]), "f64")
        return cast(op("add", constant(start, "f64"), op("mul", steps, constant(step, "f64"))), dtype)

    return lw.formula(formula, 3)


@_rule(prims.iota.default)
def _iota(lw: Lowering, _length: int, *, start: int, step: int, **_kwargs: Any) -> TensorValue:
    dtype = _out(lw)
    return lw.formula(lambda index: cast(index_value(index[0] * step + start), dtype), 1)


# ---------------------------------------------------------------- joining


@_rule(aten.cat.default)
def _cat(lw: Lowering, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    """Each part is stored in its slice of the result, by its producer if it is a formula."""
    val = lw.node.meta["val"]
    shape, strides = shape_of(val), strides_of(val)
    d = dim % len(shape)
    # Eager ignores empty vectors among tensors of more dimensions.
    parts = [t for t in tensors if t.rank == len(shape)]
    dtype = _out(lw)
    start: Expr = ZERO
    if lw.target.masks_parts and 1 < len(parts) <= MASKED:
        return masked_parts(lw, [converted(p, dtype) for p in parts], d)
    name = lw.buffer(dtype, shape, strides)
    for part in parts:
        ref = Ref(name, part.shape, strides, start * strides[d])
        lw.store(converted(part, dtype), ref)
        start = start + part.shape[d]
    return TensorValue(shape, dtype, strides, ref=Ref(name, shape, strides, ZERO))


def converted(x: TensorValue, dtype: str) -> TensorValue:
    """The same numbers in another dtype."""
    if x.dtype == dtype:
        return x
    return TensorValue(x.shape, dtype, x.strides, formula=lambda index: cast(x.at(index), dtype), cost=x.cost)


@_rule(aten.repeat.default)
def _repeat(lw: Lowering, x: TensorValue, repeats: Sequence[int]) -> TensorValue:
    shape = shape_of(lw.node.meta["val"])
    skip = len(shape) - x.rank
    lw.reread(x)

    def formula(index: tuple[Expr, ...]) -> Value:
        return x.at(tuple(ZERO if n is ONE else i % n for i, n in zip(index[skip:], x.shape, strict=True)))

    return lw.formula(formula, x.cost)


# ---------------------------------------------------------------- parts of tensors


@_rule(aten.constant_pad_nd.default)
def _pad(lw: Lowering, x: TensorValue, pads: Sequence[int], value: float = 0) -> TensorValue:
    shape = shape_of(lw.node.meta["val"])
    before = [0] * (x.rank - len(pads) // 2) + [*pads[-2::-2]]

    def formula(index: tuple[Expr, ...]) -> Value:
        cond: Value = TRUE
        at = []
        for i, low, n, size in zip(index, before, x.shape, shape, strict=True):
            cond = op("and", cond, within(i, as_expr(max(low, 0)), n + low, size))
            at.append(i - low)
        return masked(cond, x.at(tuple(at)), value)

    return _filled(lw, value) if any(n is ZERO for n in x.shape) else lw.formula(formula, x.cost + 3)


@_rule(aten.slice_scatter.default)
def _slice_scatter(
    lw: Lowering,
    x: TensorValue,
    source: TensorValue,
    dim: int = 0,
    start: int | Expr | None = None,
    end: int | Expr | None = None,
    step: int = 1,
) -> TensorValue:
    d = dim % x.rank
    if not x.shape[d].is_const:
        raise Declined
    size = x.shape[d].const
    first, last = end_of(0 if start is None else start, size), end_of(size if end is None else end, size)
    dtype = x.dtype
    if (first - last).lo >= 0:
        return lw.formula(x.at, x.cost)

    def formula(index: tuple[Expr, ...]) -> Value:
        i = index[d]
        cond = within(i, first, last, as_expr(size))
        if step != 1:
            cond = op("and", cond, op("eq", index_value((i - first) % step), constant(0, "i64")))
        at = (*index[:d], (i - first) // step, *index[d + 1 :])
        return where(cond, masked(cond, cast(source.at(at), dtype), 0), x.at(index))

    return lw.formula(formula, x.cost + source.cost + 3)


@_rule(aten.select_scatter.default)
def _select_scatter(lw: Lowering, x: TensorValue, source: TensorValue, dim: int, position: int) -> TensorValue:
    d = dim % x.rank
    place = place_of(position, x.shape[d])
    dtype = x.dtype

    def formula(index: tuple[Expr, ...]) -> Value:
        cond = op("eq", index_value(index[d]), index_value(place))
        at = (*index[:d], *index[d + 1 :])
        return where(cond, cast(source.at(at), dtype), x.at(index))

    return lw.formula(formula, x.cost + source.cost + 2)
