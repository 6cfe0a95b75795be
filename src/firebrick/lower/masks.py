"""The rule of masked_scatter: elements of a source, in order, take the places where a mask holds.

Which one stands at a place is how many places before it the mask has: counted along rows, then over the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from firebrick.ir.index.expr import ONE, ZERO, Expr, const, product, total
from firebrick.ir.index.number import as_int
from firebrick.ir.loops.constructors import cast, constant, load, op, running, where
from firebrick.ir.loops.program import Index, Load, Ref, Store
from firebrick.ir.loops.values import values_of
from firebrick.lower.context import Declined, Lowering, broadcast, rules, shape_of
from firebrick.lower.indirect import place
from firebrick.lower.tensors import TensorValue, contiguous_strides
from firebrick.lower.views import reshape_map

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firebrick.ir.index.expr import Var
    from firebrick.ir.loops.program import Value

aten = torch.ops.aten

RULES, _rule = rules()

_FEW = "Number of elements of source < number of ones in mask"


def _counted(lw: Lowering, shape: tuple[Expr, ...], ones: TensorValue) -> TensorValue:
    """The sums so far along the last dimension."""
    strides = contiguous_strides(shape)
    ref = Ref(lw.buffer("i64", shape, strides), shape, strides, ZERO)
    axes, index = lw.axes(shape, strides)
    at = total(i * s for i, s in zip(index, strides, strict=True))
    lw.nest(axes, Store(ref.buffer, at, running("sum", index[-1], ones.at(index))))
    return TensorValue(shape, "i64", strides, ref=ref)


def _flat(index: Sequence[Expr], shape: Sequence[Expr]) -> Expr:
    return total(i * s for i, s in zip(index, contiguous_strides(tuple(shape)), strict=True))


def _rank(lw: Lowering, mask: TensorValue, of_mask: object, shape: tuple[Expr, ...]) -> int:
    """How many dimensions the mask depends on, from the first: behind them, all elements are taken or none."""
    _, index = lw.axes(shape, contiguous_strides(shape))
    used: set[Var] = set()
    for v in values_of(mask.at(of_mask(index))):  # type: ignore[operator]
        if isinstance(v, (Load, Index)):
            used |= (v.index if isinstance(v, Load) else v.expr).vars()
    return max([1, *(d + 1 for d, i in enumerate(index) if not used.isdisjoint(i.vars()))])


@_rule(aten.masked_scatter.default)
def _masked_scatter(lw: Lowering, x: TensorValue, mask: TensorValue, source: TensorValue) -> TensorValue:
    shape = shape_of(lw.node.meta["val"])
    if not shape or ZERO in shape or mask.dtype != "b8" or source.dtype != x.dtype:
        raise Declined
    lw.reread(mask)
    of_mask, of_x = broadcast(mask.shape, shape), broadcast(x.shape, shape)
    rank = _rank(lw, mask, of_mask, shape)
    lead, tail = shape[:rank], as_int(product(shape[rank:]))
    size = as_int(product(source.shape))
    if size < tail:
        raise Declined
    rows = product(lead[:-1])
    first = (ZERO,) * (len(shape) - rank)
    held = TensorValue(
        lead, "i64", contiguous_strides(lead), formula=lambda i: cast(mask.at(of_mask((*i, *first))), "i64")
    )
    held.parts = lw.parts
    counts = _counted(lw, lead, held)
    assert counts.ref is not None
    buffer = counts.ref.buffer
    totals = TensorValue(
        (rows,), "i64", (ONE,), formula=lambda i: load(buffer, "i64", i[0] * lead[-1] + (lead[-1] - 1)), parts=lw.parts
    )
    before = _counted(lw, (rows,), totals)
    taken = op("mul", before.at((rows - 1,)), constant(tail, "i64"))
    lw.check(TensorValue((), "i64", (), formula=lambda _: taken, parts=lw.parts), 0, size, "RuntimeError", _FEW)
    ref = lw.realize(source)
    unfold = reshape_map(source.shape, (const(size),))

    def formula(index: tuple[Expr, ...]) -> Value:
        at, row = index[:rank], (_flat(index[: rank - 1], lead[:-1]),)
        number = op("add", op("sub", before.at(row), totals.at(row)), counts.at(at))
        slot, binds = place(op("sub", number, constant(1, "i64")), const(size // tail), "x0", wrap=False)
        found = unfold((slot * tail + _flat(index[rank:], shape[rank:]),))
        flat = ref.offset + total(i * s for i, s in zip(found, ref.strides, strict=True))
        return where(mask.at(of_mask(index)), load(ref.buffer, x.dtype, flat, binds), x.at(of_x(index)))

    return lw.formula(formula, x.cost + mask.cost + 12)
