"""Rules that write at places which come from data: a copy of the tensor, and a nest that updates it.

Updates of one element happen in the order of the index tensor, as in eager PyTorch's own loops, so that results are
the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from firebrick.ir.index.expr import ONE, ZERO, Expr, as_expr, product, total
from firebrick.ir.loops.constructors import cast, op
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Ref, Store, Value
from firebrick.ir.loops.values import hint
from firebrick.lower.context import Declined, Lowering, broadcast, dense_strides, loop_axes, rules, strides_of
from firebrick.lower.indexing import converted
from firebrick.lower.indirect import CHEAP, DEAR, OUTSIDE, Places, advanced, check, worth
from firebrick.lower.pointwise import number
from firebrick.lower.tensors import TensorValue

aten = torch.ops.aten

RULES, _rule = rules()

_MODES = {"sum": "add", "amax": "max", "amin": "min"}
"""Reduction of `scatter_reduce` -> mode of a store; the others are the library's."""


def _update(
    lw: Lowering,
    x: TensorValue,
    places: Sequence[Places],
    shape: Sequence[Expr],
    where_to: Callable[[tuple[Expr, ...], list[Expr]], Sequence[Expr]],
    value: Callable[[tuple[Expr, ...]], Value],
    mode: str = "set",
) -> TensorValue:
    """A copy of `x` in which the elements at places, for every index of `shape`, are set or combined with values."""
    if mode != "set" and x.dtype == "b8":
        raise Declined
    strides = dense_strides(x.shape, strides_of(lw.node.meta["val"]))
    # Sums of bf16 and f16 are rounded once, at the end.
    dtype = DTYPES[x.dtype].compute if mode == "add" else x.dtype
    dtype = dtype if mode == "set" else lw.target.updated_as.get(dtype, dtype)
    ref = Ref(lw.buffer(dtype, x.shape, strides), x.shape, strides, ZERO)
    lw.store(x if dtype == x.dtype else converted(x, dtype), ref)
    axes = loop_axes("i", [n for n in shape if n is not ONE])
    loops = iter(axes)
    index = tuple(ZERO if n is ONE else next(loops).var for n in shape)
    if ZERO not in shape:
        for p in places:
            p.prepare(lw, hint(product(shape)))
        lookups = [p.at(index) for p in places]
        at = where_to(index, [e for e, _ in lookups])
        flat = total(i * s for i, s in zip(at, strides, strict=True))
        binds = tuple(b for _, bound in lookups for b in bound)
        lw.nest(axes, Store(ref.buffer, flat, cast(value(index), dtype), mode, binds))
    updated = TensorValue(x.shape, dtype, strides, ref=ref)
    return updated if dtype == x.dtype else converted(updated, x.dtype)


def _along(
    lw: Lowering, x: TensorValue, dim: int, index: TensorValue, value: Callable[[tuple[Expr, ...]], Value], mode: str
) -> TensorValue:
    """One place in `dim` for each element of `index`."""
    if x.rank == 0 or index.rank == 0:
        raise Declined
    d = dim % x.rank
    plain = d == x.rank - 1 and mode in ("set", "add") and hint(index.shape[d]) > 1
    worth(lw, x.shape[d:], CHEAP if plain else DEAR, 1, hint(product(index.shape)))
    check(lw, index, 0, x.shape[d], OUTSIDE.format(d, x.shape[d].show()), "RuntimeError")
    places = [Places(index, x.shape[d], "x0", lambda out: out)]
    return _update(lw, x, places, index.shape, lambda i, at: (*i[:d], at[0], *i[d + 1 :]), value, mode)


@_rule(aten.scatter.src, aten.scatter.value)
def _scatter(
    lw: Lowering, x: TensorValue, dim: int, index: TensorValue, source: Any, *, mode: str = "set"
) -> TensorValue:
    return _along(lw, x, dim, index, _content(x, source), mode)


RULES[aten.scatter_add.default] = partial(_scatter, mode="add")


def _content(x: TensorValue, source: Any) -> Callable[[tuple[Expr, ...]], Value]:
    """What is written to a tensor: the elements of another, or a number."""
    if isinstance(source, TensorValue):
        return source.at
    filled = number(source, x.dtype)
    return lambda _: filled


@_rule(aten.scatter_reduce.two)
def _scatter_reduce(
    lw: Lowering,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    if reduce not in _MODES or not include_self:
        raise Declined
    return _along(lw, x, dim, index, source.at, _MODES[reduce])


@_rule(aten.index_put.default)
def _index_put(
    lw: Lowering, x: TensorValue, indices: Sequence[TensorValue | None], values: TensorValue, accumulate: bool = False
) -> TensorValue:
    places, shape, where_to = advanced(lw, x, indices)
    move = broadcast(values.shape, shape)
    return _update(lw, x, places, shape, where_to, lambda i: values.at(move(i)), "add" if accumulate else "set")


def _rows(
    lw: Lowering,
    x: TensorValue,
    dim: int,
    index: TensorValue,
    value: Callable[[tuple[Expr, ...]], Value],
    mode: str,
    low: int = 0,
    error: str = "RuntimeError",
    prefix: str = "",
) -> TensorValue:
    """One slice across `dim` for each element of `index`."""
    if x.rank == 0 or index.rank != 1:
        raise Declined
    d = dim % x.rank
    size = x.shape[d]
    worth(lw, x.shape[d:], CHEAP)
    check(lw, index, low and -size, size, prefix + OUTSIDE.format(d, size.show()), error)
    places = [Places(index, size, "x0", lambda out: (out[d],), bool(low))]
    shape = (*x.shape[:d], index.shape[0], *x.shape[d + 1 :])
    return _update(lw, x, places, shape, lambda i, at: (*i[:d], at[0], *i[d + 1 :]), value, mode)


@_rule(aten.index_add.default)
def _index_add(
    lw: Lowering, x: TensorValue, dim: int, index: TensorValue, source: TensorValue, *, alpha: float = 1
) -> TensorValue:
    compute = DTYPES[x.dtype].compute
    factor = number(alpha, compute)

    def value(i: tuple[Expr, ...]) -> Value:
        # Eager rounds the product to the tensor's type before it adds.
        return source.at(i) if alpha == 1 else cast(op("mul", cast(source.at(i), compute), factor), x.dtype)

    if source.rank != x.rank:
        raise Declined
    return _rows(lw, x, dim, index, value, "add")


@_rule(aten.index_copy.default)
def _index_copy(lw: Lowering, x: TensorValue, dim: int, index: TensorValue, source: TensorValue) -> TensorValue:
    if source.rank != x.rank:
        raise Declined
    return _rows(lw, x, dim, index, source.at, "set", error="IndexError", prefix="index_copy_(): ")


@_rule(aten.index_fill.int_Scalar)
def _index_fill(lw: Lowering, x: TensorValue, dim: int, index: TensorValue, value: float) -> TensorValue:
    return _rows(lw, x, dim, index, _content(x, value), "set", low=-1, error="IndexError")


@_rule(aten.as_strided_scatter.default)
def _as_strided_scatter(
    lw: Lowering,
    x: TensorValue,
    source: TensorValue,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> TensorValue:
    """A copy of the memory, and the source where offset and strides say."""
    base = lw.node.args[0].meta["val"]  # type: ignore[union-attr]
    strides = dense_strides(x.shape, strides_of(base))
    start = 0 if offset is None else offset - int(base.storage_offset())
    last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    # Eager's copy is of the whole storage, which may be more than the tensor.
    if strides != strides_of(base) or _meets_itself(size, stride) or start < 0 or last >= base.numel():
        raise Declined
    copy = Ref(lw.buffer(x.dtype, x.shape, strides), x.shape, strides, ZERO)
    lw.store(x, copy)
    place = Ref(copy.buffer, source.shape, tuple(map(as_expr, stride)), as_expr(start))
    lw.store(converted(source, x.dtype), place)
    return TensorValue(x.shape, x.dtype, strides, ref=copy)


def _meets_itself(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements of a view may share memory."""
    reach = 0
    for step, n in sorted((s, n) for s, n in zip(stride, size, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += step * (n - 1)
    return False
