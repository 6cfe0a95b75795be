"""Rules that read at places which come from data.

A place is wrapped around and clamped where its text doesn't show that it lies inside, so that no load can leave its
buffer; where the op must raise, a check of the whole index tensor is part of the program (`firebrick.ir.loops.bounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from firebrick.ir.index.expr import ONE, ZERO, Expr, Var, as_expr, known_less, maximum, product, total, var
from firebrick.ir.loops.bounds import span
from firebrick.ir.loops.constructors import cast, constant, index_value, load, op
from firebrick.ir.loops.program import Const, Index, Load, Value
from firebrick.ir.loops.values import hint
from firebrick.lower.context import Declined, Lowering, broadcast, count_of, rules
from firebrick.lower.tensors import TensorValue, contiguous_strides
from firebrick.lower.views import reshape_map

aten = torch.ops.aten

RULES, _rule = rules()

Place = tuple["Expr", "tuple[tuple[Var, Value], ...]"]
"""An index expression, and the values of its variables that come from data."""

OUTSIDE = "index {{}} is out of bounds for dimension {} with size {}"
"""What eager says of an index outside of a dimension."""
_OUTSIDE_ROWS = "index out of range in self"
_OUTSIDE_ALL = "out of range: tried to access index {{}} on a tensor of {} elements."


def place(value: Value, size: Expr, label: str, wrap: bool = True) -> Place:
    """The index of a dimension that a whole number stands for; with `wrap`, negative ones count from the end."""
    wide = cast(value, "i64")
    low, high = span(wide)
    if isinstance(wide, Index) and low >= 0 and known_less(wide.expr, size):
        return wide.expr, ()
    n = index_value(size)
    if wrap and low < 0:
        # v >> 63 has all bits where v is negative, and needs no truth value, which has another width.
        sign = constant(-1, "i64") if high < 0 else op("shr", wide, constant(63, "i64"))
        wide = op("add", wide, op("bitand", sign, n))
        low, high = low + size.lo, high + size.hi if high < 0 else max(high, size.hi - 1)
    if high >= size.lo:
        wide = op("min", wide, index_value(maximum(size - 1, 0)))
    if low < 0:
        wide = op("max", wide, constant(0, "i64"))
    if isinstance(wide, Index):
        return wide.expr, ()
    if isinstance(wide, Const):
        return as_expr(int(wide.value)), ()
    slot = _slot(label, size)
    return slot, ((slot, wide),)


def _slot(label: str, size: Expr) -> Var:
    return var(label, 0, max(size.const - 1, 0)) if size.is_const else var(label, bound=size)


def check(lw: Lowering, index: TensorValue, low: Expr | int, size: Expr, text: str, error: str = "IndexError") -> None:
    """Let the program raise unless all indices are in low..size-1; nothing where their text shows it."""
    if ZERO in index.shape:
        return
    if size.hi < 1 or index.dtype not in ("i64", "i32"):
        raise Declined
    least = as_expr(low)
    bounds = lw.span(index)
    if bounds is None or bounds[0] < least.hi or bounds[1] >= size.lo:
        element = index.at(lw.axes(index.shape, contiguous_strides(index.shape))[1])
        if isinstance(element, Index) and element.expr.lo >= least.hi and known_less(element.expr, size):
            return
        lw.share(index)
        lw.check(index, low, size - 1, error, text)


class Places:
    """The places that an index tensor names in one dimension of another tensor.

    move: from an index of the result to one of the index tensor. wrap: negative places count from the end.
    """

    def __init__(
        self, index: TensorValue, size: Expr, label: str, move: Callable[..., tuple[Expr, ...]], wrap: bool = False
    ) -> None:
        self.index, self.size, self.label, self.move, self.wrap = index, size, label, move, wrap
        self.ready = False

    def at(self, out: tuple[Expr, ...]) -> Place:
        """The place for an element of the result."""
        value = self.index.at(self.move(out))
        if self.ready and isinstance(value, Load):
            slot = _slot(self.label, self.size)
            return slot, ((slot, value),)
        return place(value, self.size, self.label, self.wrap)

    def prepare(self, lw: Lowering, count: int) -> None:
        """Keep the places, inside of the dimension, in a table if each is used for many of `count` elements."""
        index = self.index
        few = 4 * hint(product(index.shape)) <= count and count >= _TABLE
        if index.cost < 1 or not few or ZERO in (*index.shape, self.size):
            return
        strides = contiguous_strides(index.shape)
        _, at = lw.axes(index.shape, strides)
        _, binds = place(index.at(at), self.size, self.label, self.wrap)
        if not binds or (index.ref is not None and binds[0][1] is index.at(at)):
            return  # a formula of the loops, or stored as it is

        def inside(i: tuple[Expr, ...]) -> Value:
            e, bound = place(index.at(i), self.size, self.label, self.wrap)
            return bound[0][1] if bound else index_value(e)

        self.index = TensorValue(index.shape, "i64", strides, formula=inside, cost=index.cost + 4, parts=index.parts)
        lw.realize(self.index)
        self.ready = True


def _read(
    lw: Lowering,
    x: TensorValue,
    places: Sequence[Places],
    where_to: Callable[[tuple[Expr, ...], list[Expr]], Sequence[Expr]],
) -> TensorValue:
    """The node's result: elements of `x`, at the index that `where_to` makes of the result's and of the places."""
    ref = lw.realize(x)
    for p in places:
        p.prepare(lw, count_of(lw.node.meta["val"]))

    def formula(out: tuple[Expr, ...]) -> Value:
        reads = [p.at(out) for p in places]
        at = where_to(out, [e for e, _ in reads])
        flat = ref.offset + total(i * s for i, s in zip(at, ref.strides, strict=True))
        return load(ref.buffer, x.dtype, flat, tuple(b for _, binds in reads for b in binds))

    return lw.formula(formula, 4 + sum(p.index.cost for p in places))


_RUN = 16
"""Elements in a row from which copying them costs what it costs the library."""
_TABLE = 4096
"""Elements from which a kernel that makes a table of places is worth its launch."""
CHEAP, DEAR = 3.0, 12.0
"""What the library takes an element of scattered places: in a plain loop, or in one that finds its way each time."""


def worth(lw: Lowering, dims: Sequence[Expr], library: float, run: int = 0, count: int = 0) -> None:
    """Decline for a node alone where the library is faster; `dims`: the indexed dimension and those behind it."""
    run = run or max(hint(product(dims[1:])), 1)
    if run < _RUN:
        # Places are computed many at once and read one by one; the check reads all indices before.
        lw.prefer(5.0 + 2.0 / run, library, max(count_of(lw.node.meta["val"]), count))


def _same(out: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return out


@_rule(aten._functional_assert_async.msg)
def _asserted(lw: Lowering, truth: TensorValue, text: str, x: TensorValue) -> TensorValue:
    """The tensor as it is; the program raises unless `truth` is true."""
    if truth.dtype != "b8":
        raise Declined
    lw.check(truth, 1, 1, "RuntimeError", text.replace("{", "{{").replace("}", "}}"))
    return x


@_rule(aten.gather.default)
def _gather(lw: Lowering, x: TensorValue, dim: int, index: TensorValue, *, sparse_grad: bool = False) -> TensorValue:
    if x.rank == 0 or index.rank == 0:
        raise Declined
    d = dim % x.rank
    worth(lw, x.shape[d:], CHEAP if d == x.rank - 1 and hint(index.shape[d]) >= _RUN else DEAR, run=1)
    check(lw, index, 0, x.shape[d], OUTSIDE.format(d, x.shape[d].show()), "RuntimeError")
    places = [Places(index, x.shape[d], "x0", _same)]
    return _read(lw, x, places, lambda out, at: (*out[:d], at[0], *out[d + 1 :]))


@_rule(aten.index_select.default)
def _index_select(lw: Lowering, x: TensorValue, dim: int, index: TensorValue) -> TensorValue:
    if x.rank == 0 or index.rank != 1:
        raise Declined
    d = dim % x.rank
    worth(lw, x.shape[d:], CHEAP)
    check(lw, index, 0, x.shape[d], _OUTSIDE_ROWS)
    places = [Places(index, x.shape[d], "x0", lambda out: (out[d],))]
    return _read(lw, x, places, lambda out, at: (*out[:d], at[0], *out[d + 1 :]))


@_rule(aten.embedding.default)
def _embedding(
    lw: Lowering, table: TensorValue, index: TensorValue, padding: int = -1, scale: bool = False, sparse: bool = False
) -> TensorValue:
    check(lw, index, 0, table.shape[0], _OUTSIDE_ROWS)
    places = [Places(index, table.shape[0], "x0", lambda out: out[:-1])]
    return _read(lw, table, places, lambda out, at: (at[0], out[-1]))


@_rule(aten.take.default)
def _take(lw: Lowering, x: TensorValue, index: TensorValue) -> TensorValue:
    size = product(x.shape)
    check(lw, index, -size, size, _OUTSIDE_ALL.format(size.show()))
    unfold = reshape_map(x.shape, (size,))
    return _read(lw, x, [Places(index, size, "x0", _same, True)], lambda _, at: unfold((at[0],)))


def advanced(
    lw: Lowering, x: TensorValue, indices: Sequence[TensorValue | None], checked: bool = True
) -> tuple[list[Places], tuple[Expr, ...], Callable[[tuple[Expr, ...], list[Expr]], list[Expr]]]:
    """Advanced indexing of `x` by integers: the places, the shape of what is indexed, and where its elements are."""
    used = [d for d, i in enumerate(indices) if i is not None]
    tensors = [i for i in indices if i is not None]
    if any(i.dtype not in ("i64", "i32") for i in tensors):
        raise Declined
    if checked:
        for i, d in zip(tensors, used, strict=True):
            check(lw, i, -x.shape[d], x.shape[d], OUTSIDE.format(d, x.shape[d].show()))
    middle = _broadcast_shape([i.shape for i in tensors])
    rank = len(middle)
    rest = [n for d, n in enumerate(x.shape) if d not in used]
    # Dimensions that the indices make stand in the place of theirs if those are neighbours, else in front.
    first = used[0] if used == list(range(used[0], used[0] + len(used))) else 0

    def mover(i: TensorValue) -> Callable[..., tuple[Expr, ...]]:
        move = broadcast(i.shape, middle)
        return lambda out: move(out[first : first + rank])

    places = [
        Places(i, x.shape[d], f"x{k}", mover(i), True) for k, (i, d) in enumerate(zip(tensors, used, strict=True))
    ]

    def where_to(out: tuple[Expr, ...], at: list[Expr]) -> list[Expr]:
        unindexed = iter((*out[:first], *out[first + rank :]))
        named = dict(zip(used, at, strict=True))
        return [named[d] if d in named else next(unindexed) for d in range(x.rank)]

    return places, (*rest[:first], *middle, *rest[first:]), where_to


def _broadcast_shape(shapes: Sequence[tuple[Expr, ...]]) -> tuple[Expr, ...]:
    sizes: list[Expr] = [ONE] * max(map(len, shapes))
    for shape in shapes:
        for d, n in enumerate(reversed(shape), 1):
            sizes[-d] = n if sizes[-d] is ONE else sizes[-d]
    return tuple(sizes)


@_rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(lw: Lowering, x: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    """Advanced indexing by integers; `_unsafe_index` promises that they are inside."""
    places, _, where_to = advanced(lw, x, indices, lw.node.target is aten.index.Tensor)
    return _read(lw, x, places, where_to)
