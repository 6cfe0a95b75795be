"""Rules of bags of embeddings: rows of a table at places from data, folded over bags of one size.

Bags that begin at places from data are left to the library: the bounds of loops are no data.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from firebrick.ir.index.expr import ZERO, Expr, as_int, exprs, var
from firebrick.ir.loops.constructors import cast, constant, index_value, load, op, where
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Value
from firebrick.lower.context import Declined, Lowering, only_first, rules
from firebrick.lower.indirect import Place, Places, check
from firebrick.lower.tensors import TensorValue, contiguous_strides

aten = torch.ops.aten

RULES, _rule = rules()

_SUM, _MEAN, _MAX = range(3)
_OUTSIDE = "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be {}"

_FAR, _MANY = 1 << 24, 1 << 21
"""Bytes of a table, and of what is read of it, from which on the library is faster at sums: it fetches rows ahead."""

_Index = tuple[Expr, ...]


class _Bags:
    """Equal bags of indices. padding: the index that doesn't count, -1 if all do."""

    def __init__(self, lw: Lowering, index: TensorValue, offsets: TensorValue, bags: int, padding: int) -> None:
        count = as_int(index.shape[0])
        if not bags or not count or count % bags:
            raise Declined
        i, self.size = var("i0", 0, bags - 1), count // bags
        starts = [cast(index_value(i * self.size, dtype), offsets.dtype) for dtype in ("i64", "i32")]
        if offsets.at((i,)) not in starts:
            raise Declined
        self.lw, self.index, self.count, self.padding = lw, index, bags, padding

    def slot(self, at: _Index) -> _Index:
        """Where the index at a bag and a place in it is among all."""
        return (at[0] * self.size + at[1],)

    def value(self, at: _Index) -> Value:
        """The index at a bag and a place in it."""
        return cast(self.index.at(self.slot(at)), "i64")

    def counting(self, at: _Index, value: Value, nothing: Value) -> Value:
        """`value` of the indices that count, `nothing` of the others."""
        if self.padding < 0:
            return value
        return where(op("ne", self.value(at), constant(self.padding, "i64")), value, nothing)

    def fold(self, name: str, formula: Callable[[_Index], Value], dtype: str) -> TensorValue:
        """A number for each bag."""
        shape = exprs((self.count, self.size))
        rows = TensorValue(shape, dtype, contiguous_strides(shape), formula=formula, cost=4, parts=self.lw.parts)
        return self.lw.reduction(name, rows, [1], body=lambda v, _: v, keepdim=False)


def _finish_mean(bags: _Bags, compute: str) -> Callable[[Value, _Index], Value]:
    if bags.padding < 0:
        return lambda v, _: op("div", v, constant(bags.size, compute))
    zero, one = constant(0, compute), constant(1, compute)
    counted = bags.fold("sum", lambda at: bags.counting(at, one, zero), compute)
    return lambda v, at: op("div", v, op("max", counted.at(at[:1]), one))


def _finish_max(bags: _Bags, size: Expr, row: Callable[[Place, Expr], Value]) -> Callable[[Value, _Index], Value]:
    """A NaN loses against all but those behind it, so only the first row of a bag decides; an empty bag is 0."""
    rows = as_int(size)
    end = constant(bags.size * rows, "i64")

    def order(at: _Index) -> Value:
        wide = op("add", index_value(at[1] * rows), bags.value(at))
        return bags.counting(at, wide, end)

    if bags.padding < 0:
        first = Places(bags.index, size, "x1", lambda at: bags.slot((at[0], ZERO)))
    else:
        least = bags.fold("min", order, "i64")
        shape = (least.shape[0],)
        result = TensorValue(
            shape, "i64", least.strides, formula=lambda at: op("mod", least.at(at), constant(rows, "i64")), cost=8
        )
        first = Places(result, size, "x1", lambda at: at[:1])

    def finish(value: Value, at: _Index) -> Value:
        nan = constant(math.nan, value.dtype)
        value = where(op("isnan", row(first.at(at), at[1])), nan, value)
        return value if bags.padding < 0 else where(op("lt", least.at(at[:1]), end), value, constant(0, value.dtype))

    return finish


@_rule(aten._embedding_bag_forward_only.default, aten._embedding_bag.default)
def _embedding_bag(
    lw: Lowering,
    table: TensorValue,
    index: TensorValue,
    offsets: TensorValue,
    scale: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    weights: TensorValue | None = None,
    last: bool = False,
    padding: int = -1,
) -> tuple[TensorValue | None, ...]:
    val = only_first(lw)
    if not DTYPES[table.dtype].is_float or ZERO in table.shape:
        raise Declined
    row_bytes = val.shape[1] * DTYPES[table.dtype].nbytes
    far = as_int(table.shape[0]) * row_bytes > _FAR and as_int(index.shape[0]) * row_bytes > _MANY
    if lw.alone and far and mode == _SUM and padding < 0 and table.dtype != "f64":
        raise Declined
    bags = _Bags(lw, index, offsets, val.shape[0], padding)
    check(lw, index, 0, table.shape[0], _OUTSIDE, "RuntimeError")
    ref, compute = lw.realize(table), DTYPES[table.dtype].compute
    places = Places(index, table.shape[0], "x0", bags.slot)
    places.prepare(lw, bags.count * bags.size * val.shape[1])
    name, nothing = ("max", constant(-math.inf, compute)) if mode == _MAX else ("sum", constant(0, compute))

    def row(place: Place, d: Expr) -> Value:
        flat = ref.offset + place[0] * ref.strides[0] + d * ref.strides[1]
        return cast(load(ref.buffer, table.dtype, flat, place[1]), compute)

    def element(at: _Index) -> Value:
        value = row(places.at(at), at[2])
        if weights is not None:
            value = op("mul", value, cast(weights.at(bags.slot(at)), compute))
        if mode == _MAX:
            value = where(op("isnan", value), nothing, value)
        return bags.counting(at, value, nothing)

    finish: Callable[[Value, _Index], Value] = lambda v, _: v  # noqa: E731
    if mode == _MEAN:
        finish = _finish_mean(bags, compute)
    elif mode == _MAX:
        finish = _finish_max(bags, table.shape[0], row)
    shape = exprs((bags.count, bags.size, val.shape[1]))
    rows = TensorValue(shape, compute, contiguous_strides(shape), formula=element, cost=4, parts=lw.parts)
    result = lw.reduction(
        name,
        rows,
        [1],
        body=lambda v, _: v,
        finish=lambda v, at: cast(finish(v, (at[0], at[2])), table.dtype),
        keepdim=False,
        fake=val,
    )
    return result, None, None, None
