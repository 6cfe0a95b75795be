"""Rules of windows.

Pooling with small windows is unrolled to a formula of the elements under the window. Larger and uneven windows are
folded one dimension after the other, the outermost first, so that most of the work is done on whole rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce as reduce_values
from itertools import product
from typing import Any

import torch

from firebrick.ir.index.expr import ONE, ZERO, Expr, as_expr, as_int, const, floordiv, maximum, minimum, total
from firebrick.ir.loops.constructors import TRUE, cast, constant, index_value, masked, op, reduce, where
from firebrick.ir.loops.dtypes import BY_TORCH, DTYPES
from firebrick.ir.loops.program import Ref, Store, Value
from firebrick.ir.loops.scalar_ops import reduction_identity
from firebrick.lower.context import (
    Declined,
    Lowering,
    dense_strides,
    loop_axes,
    only_first,
    rules,
    shape_of,
    strides_of,
)
from firebrick.lower.tensors import TensorValue, contiguous_strides

aten = torch.ops.aten

RULES, _rule = rules()

UNROLLED = 16
"""Elements of the largest window that is unrolled."""
_PLACES, _PLACES_OF_CHANNELS = 36, 12
"""Elements of the largest window of whose maximum the place is found too; and where channels lie side by side, which
the library's kernel takes many at once."""
_LONG = 32
"""Elements of the longest side of a window that is unrolled where windows are folded by dimensions."""


class _Window:
    """A window over the last dimensions of a tensor: which elements it covers for an output index."""

    def __init__(
        self, x: TensorValue, size: Sequence[int], stride: Sequence[int], pad: Sequence[int], dilation: Sequence[int]
    ) -> None:
        self.x, self.rank = x, len(size)
        self.size, self.stride, self.pad, self.dilation = list(size), list(stride), list(pad), list(dilation)
        self.extent = [as_int(n) for n in x.shape[x.rank - self.rank :]]

    def elements(
        self, index: tuple[Expr, ...], sides: Sequence[_Side]
    ) -> Iterator[tuple[tuple[int, ...], Value, tuple[Expr, ...]]]:
        """The offsets of each element in the window, whether it is inside of the tensor, and where it is."""
        for offsets in product(*(range(n) for n in self.size)):
            parts = [side.element(i, const(k)) for side, i, k in zip(sides, index[-self.rank :], offsets, strict=True)]
            inside: Value = TRUE
            for part, _ in parts:
                inside = op("and", inside, part)
            yield offsets, inside, (*index[: -self.rank], *(at for _, at in parts))

    def unrolled(self, name: str, compute: str) -> Callable[[tuple[Expr, ...]], Value]:
        """The maximum of the window's elements or their sum, which begins with 0, as a formula."""
        sides = self.sides()
        start: list[Value] = [] if name == "max" else [constant(0.0, compute)]
        empty = reduction_identity(name, self.x.dtype) if name == "max" else 0.0

        def formula(index: tuple[Expr, ...]) -> Value:
            inside = self.elements(index, sides)
            values = [*start, *(cast(masked(cond, self.x.at(at), empty), compute) for _, cond, at in inside)]
            return reduce_values(lambda a, b: op("max" if name == "max" else "add", a, b), values)

        return formula

    def by_dimensions(self, val: torch.Tensor) -> bool:
        """Whether to fold by dimensions: the window is large, or neighbours in a row would need masks."""
        return math.prod(self.size) > UNROLLED or bool(self.pad[-1] and val.stride(-1) == 1)

    def sides(self) -> list[_Side]:
        """The window's sides, where it is folded by dimensions."""
        rows = zip(self.extent, self.size, self.stride, self.pad, self.dilation, strict=True)
        return [_Side(n, k, lambda i, s=s, p=p: i * s - p, d) for n, k, s, p, d in rows]  # type: ignore[misc]

    def count(self, index: tuple[Expr, ...], with_padding: bool) -> Expr:
        """How many elements the mean of the window is taken over."""
        result: Expr | int = 1
        for i, s, k, p, n in zip(
            index[self.x.rank - self.rank :], self.stride, self.size, self.pad, self.extent, strict=True
        ):
            first = i * s - p
            last = minimum(first + k, n + p)
            result = (last - first if with_padding else minimum(last, n) - maximum(first, 0)) * result
        assert isinstance(result, Expr)
        return result


@dataclass(frozen=True, slots=True)
class _Side:
    """The places of a window in a dimension of `n` elements: first(i), and each `step` elements, `count` in all.

    end: of windows of several sizes, which have `sure` places at least.
    """

    n: int
    count: int
    first: Callable[[Expr], Expr]
    step: int = 1
    sure: int = 0
    end: Callable[[Expr], Expr] | None = None

    def element(self, i: Expr, k: Expr) -> tuple[Value, Expr]:
        """Whether place k of window i is inside of the tensor, and where it is."""
        at = self.first(i) + k * self.step
        if self.end is not None:
            return TRUE if k.hi < self.sure else op("lt", index_value(at), index_value(self.end(i))), at
        inside = op("ge", index_value(at), constant(0, "i64"))
        return op("and", inside, op("lt", index_value(at), constant(self.n, "i64"))), at


def _uneven(n: int, count: int) -> _Side:
    """The windows that share out `n` elements among `count` results."""
    sizes = [-(-(i + 1) * n // count) - i * n // count for i in range(count)]
    end = None if min(sizes) == max(sizes) else lambda i: floordiv((i + 1) * n + (count - 1), count)
    return _Side(n, max(sizes), lambda i: floordiv(i * n, count), sure=min(sizes), end=end)


def _folded(lw: Lowering, x: TensorValue, sides: Sequence[_Side], name: str, val: torch.Tensor) -> TensorValue:
    """`x` folded over windows in its last dimensions; all but copies is of the dtype that it is computed in."""
    order = sorted(range(x.rank), key=lambda d: (-as_int(strides_of(val)[d]), d))
    empty = reduction_identity("max", x.dtype) if name == "max" else 0.0
    for d, side in enumerate(sides, x.rank - len(sides)):
        if side.count == 1 and side.n == val.shape[d]:
            continue
        if d == order[-1] and side.end is None:
            x, side = _padded(lw, x, d, side, val.shape[d], empty)
            if name == "max":
                x, side = _of_runs(lw, x, d, side)
        lw.realize(x)  # windows overlap: an element is read several times
        shape = (*x.shape[:d], const(val.shape[d]), *x.shape[d + 1 :])
        formula = _fold(x, d, side, name, empty)
        strides = _packed(shape, order)
        compute = DTYPES[x.dtype].compute
        x = TensorValue(shape, compute, strides, formula=formula, cost=3 * side.count, parts=lw.parts)
        if side.count > _LONG:
            lw.realize(x)
    return x


def _fold(x: TensorValue, d: int, side: _Side, name: str, empty: float) -> Callable[[tuple[Expr, ...]], Value]:
    compute, combine = DTYPES[x.dtype].compute, "max" if name == "max" else "add"

    def formula(index: tuple[Expr, ...]) -> Value:
        def element(k: Expr) -> Value:
            inside, at = side.element(index[d], k)
            return cast(masked(inside, x.at((*index[:d], at, *index[d + 1 :])), empty), compute)

        result, first = element(ZERO), 1
        if side.count > _LONG:
            # What all windows have needs no mask.
            first = side.sure or side.count
            axes = loop_axes("r", [const(first)])
            result = reduce(name, axes, element(axes[0].var))
        for k in range(first, side.count):
            result = op(combine, result, element(const(k)))
        return result

    return formula


def _of_runs(lw: Lowering, x: TensorValue, d: int, side: _Side) -> tuple[TensorValue, _Side]:
    """Wide windows of neighbours as windows of the maxima of runs: of 33, 4 runs of 9 each 8 places, 11 maxima of 2."""
    if side.count < UNROLLED or side.first(ONE) - side.first(ZERO) is not ONE:
        return x, side
    n = side.count
    # Runs may overlap, and join without a gap: run + (count - 1) * step = n where step <= run.
    splits = [(run, step) for run in range(2, 2 * math.isqrt(n)) for step in range(1, run + 1) if (n - run) % step == 0]
    run, step = min(splits, key=lambda s: s[0] + (n - s[0]) // s[1])
    lw.realize(x)
    shape = (*x.shape[:d], x.shape[d] - (run - 1) * side.step, *x.shape[d + 1 :])
    inside = _Side(side.n, run, lambda i: i, side.step, sure=run, end=lambda i: i + run)
    formula = _fold(x, d, inside, "max", 0.0)
    strides = _packed(shape, [k for k in range(x.rank) if k != d] + [d])
    pooled = TensorValue(shape, DTYPES[x.dtype].compute, strides, formula=formula, cost=3 * run, parts=lw.parts)
    return pooled, _Side(as_int(shape[d]), (n - run) // step + 1, side.first, step * side.step)


def _packed(shape: Sequence[Expr], order: Sequence[int]) -> tuple[Expr, ...]:
    """Strides of a tensor without gaps whose dimensions lie in memory in this order."""
    strides = dict(zip(order, contiguous_strides(tuple(shape[d] for d in order)), strict=True))
    return tuple(strides[d] for d in range(len(shape)))


def _padded(lw: Lowering, x: TensorValue, d: int, side: _Side, count: int, empty: float) -> tuple[TensorValue, _Side]:
    """`x` with all that windows see beside it in the dimension of rows: loads need no masks then."""
    before = max(-as_int(side.first(ZERO)), 0)
    reach = as_int(side.first(const(count - 1))) + (side.count - 1) * side.step + 1
    behind = max(reach - side.n, 0)
    if not before and not behind:
        return x, side

    def sized(n: int) -> tuple[Expr, ...]:
        return (*x.shape[:d], const(n), *x.shape[d + 1 :])

    shape = sized(before + side.n + behind)
    strides = _packed(shape, [k for k in range(x.rank) if k != d] + [d])
    ref = Ref(lw.buffer(x.dtype, shape, strides), shape, strides, ZERO)
    fill = constant(empty, x.dtype)
    for start, n in ((0, before), (before, side.n), (before + side.n, behind)):
        formula = x.at if n == side.n and start == before else lambda _: fill
        part = TensorValue(sized(n), x.dtype, strides, formula=formula, cost=x.cost, parts=lw.parts)
        lw.store(part, Ref(ref.buffer, part.shape, strides, as_expr(start)))
    first = side.first
    moved = _Side(side.n + before + behind, side.count, lambda i: first(i) + before, side.step)
    return TensorValue(shape, x.dtype, strides, ref=ref), moved


def _spread(value: Any, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _window(lw: Lowering, x: TensorValue, rank: int, size: Any, stride: Any, pad: Any, dilation: Any = 1) -> _Window:
    val = lw.node.meta["val"]
    val = val if isinstance(val, torch.Tensor) else val[0]
    if not DTYPES[x.dtype].is_float or (ZERO in x.shape and val.numel()):
        raise Declined
    sizes = _spread(size, rank)
    return _Window(x, sizes, _spread(stride or sizes, rank), _spread(pad, rank), _spread(dilation, rank))


def _maximum(lw: Lowering, window: _Window, val: torch.Tensor) -> TensorValue:
    x = window.x
    if window.by_dimensions(val):
        whole = _folded(lw, x, window.sides(), "max", val)
        return lw.formula(lambda index: cast(whole.at(index), x.dtype), whole.cost, val)
    lw.realize(x)
    formula = window.unrolled("max", DTYPES[x.dtype].compute)
    return lw.formula(lambda index: cast(formula(index), x.dtype), 3 * math.prod(window.size), val)


def _mean(
    lw: Lowering, window: _Window, count: Callable[[tuple[Expr, ...]], Value], sides: Sequence[_Side] = ()
) -> TensorValue:
    """The sums over windows, divided by `count` of the index."""
    x, out = window.x, BY_TORCH[lw.node.meta["val"].dtype].name
    compute = DTYPES[out].compute
    if sides or window.by_dimensions(lw.node.meta["val"]):
        whole = _folded(lw, x, sides or window.sides(), "sum", lw.node.meta["val"])
        return lw.formula(
            lambda i: cast(op("div", cast(whole.at(i), compute), cast(count(i), compute)), out), whole.cost + 2
        )
    lw.realize(x)
    formula = window.unrolled("sum", compute)
    return lw.formula(lambda i: cast(op("div", formula(i), cast(count(i), compute)), out), 3 * math.prod(window.size))


def _maxima(lw: Lowering, window: _Window) -> tuple[TensorValue, ...]:
    """The maxima, and where they are if that is used."""
    val, places = lw.node.meta["val"]
    if 1 in lw.used:
        return _with_places(lw, window, val, places)
    return (_maximum(lw, window, val),) * 2


def _with_places(
    lw: Lowering, window: _Window, val: torch.Tensor, fake: torch.Tensor
) -> tuple[TensorValue, TensorValue]:
    """The maxima and their places in the last dimensions: of equals the first, of NaN the last."""
    x, sides, rank = window.x, window.sides(), window.rank
    rows = val.stride(-1) == 1
    if math.prod(window.size) > (_PLACES if rows else _PLACES_OF_CHANNELS) or math.prod(window.extent) >= 1 << 31:
        raise Declined
    compute = DTYPES[x.dtype].compute
    lowest = reduction_identity("max", x.dtype)
    steps = [math.prod(window.extent[d + 1 :]) for d in range(rank)]
    if rows and val.shape[-1] > 1:
        x, sides[-1] = _padded(lw, x, x.rank - 1, sides[-1], val.shape[-1], float(lowest))
    lw.realize(x)

    def best(index: tuple[Expr, ...]) -> tuple[Value, Value]:
        """The maximum, and how far it is behind the first element of the window."""
        best_value: Value | None = None
        place: Value = constant(0, "i32")
        for offsets, inside, at in window.elements(index, sides):
            value = cast(masked(inside, x.at(at), lowest), compute)
            if best_value is None:
                best_value = value
                continue
            away = sum(k * d * n for k, d, n in zip(offsets, window.dilation, steps, strict=True))
            better = op("or", op("gt", value, best_value), op("isnan", value))
            best_value, place = where(better, value, best_value), where(better, constant(away, "i32"), place)
        assert best_value is not None
        return best_value, place

    def skipped(index: tuple[Expr, ...]) -> Value:
        """How far the first element of the window that is inside of the tensor is behind its first one."""
        result: Value = constant(0, "i32")
        for i, s, p, d, n in zip(index[-rank:], window.stride, window.pad, window.dilation, steps, strict=True):
            # Of i32 from the start: an index expression of a maximum would be made of i64, one by one.
            outside = op("sub", constant(p, "i32"), cast(index_value(i * s), "i32"))
            if d > 1:
                step = constant(d, "i32")
                outside = op("mul", op("floordiv", op("add", outside, constant(d - 1, "i32")), step), step)
            result = op("add", result, op("mul", op("max", outside, constant(0, "i32")), constant(n, "i32")))
        return result

    def place(index: tuple[Expr, ...]) -> Value:
        best_value, away = best(index)
        if any(window.pad):
            away = where(op("eq", best_value, constant(lowest, compute)), skipped(index), away)
        begin = total(
            (i * s - p) * n for i, s, p, n in zip(index[-rank:], window.stride, window.pad, steps, strict=True)
        )
        return op("add", index_value(begin), cast(away, "i64"))

    results: list[TensorValue] = []
    for t in (val, fake):
        shape, dtype = shape_of(t), BY_TORCH[t.dtype].name
        layout = dense_strides(shape, strides_of(val))
        results.append(TensorValue(shape, dtype, layout, ref=Ref(lw.buffer(dtype, shape, layout), shape, layout, ZERO)))
    if ZERO not in results[0].shape:
        axes, index = lw.axes(results[0].shape, results[0].strides)
        at = total(i * n for i, n in zip(index, results[0].strides, strict=True))
        values = cast(best(index)[0], x.dtype), place(index)
        lw.nest(axes, *(Store(t.ref.buffer, at, v) for t, v in zip(results, values, strict=True) if t.ref is not None))
    return results[0], results[1]


@_rule(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(
    lw: Lowering, x: TensorValue, size: Any, stride: Any = (), pad: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> tuple[TensorValue, ...]:
    rank = 2 if lw.node.target is aten.max_pool2d_with_indices.default else 3
    return _maxima(lw, _window(lw, x, rank, size, stride, pad, dilation))


@_rule(aten.avg_pool2d.default, aten.avg_pool3d.default)
def _avg_pool(
    lw: Lowering,
    x: TensorValue,
    size: Any,
    stride: Any = (),
    pad: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> TensorValue:
    window = _window(lw, x, 2 if lw.node.target is aten.avg_pool2d.default else 3, size, stride, pad)
    if divisor:
        return _mean(lw, window, lambda _: constant(divisor, "i64"))
    return _mean(lw, window, lambda index: index_value(window.count(index, count_include_pad)))


def _shared_out(lw: Lowering, x: TensorValue, val: torch.Tensor, rank: int) -> tuple[_Window, list[_Side]]:
    """The windows of an adaptive pool: one window if all are equal, else the sides of several."""
    pairs = [(as_int(n), m) for n, m in zip(x.shape[-rank:], val.shape[-rank:], strict=True)]
    if any(m == 0 for _, m in pairs):
        raise Declined
    even = all(n % m == 0 for n, m in pairs)
    window = _window(lw, x, rank, [n // m if even else 1 for n, m in pairs], (), 0)
    return window, [] if even else [_uneven(n, m) for n, m in pairs]


@_rule(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def _adaptive_avg_pool(lw: Lowering, x: TensorValue, size: Any) -> TensorValue:
    rank = 2 if lw.node.target is aten._adaptive_avg_pool2d.default else 3
    window, sides = _shared_out(lw, x, lw.node.meta["val"], rank)

    def count(index: tuple[Expr, ...]) -> Value:
        result: Expr = ONE
        for i, side in zip(index[-rank:], sides, strict=True):
            result = result * (as_expr(side.count) if side.end is None else side.end(i) - side.first(i))
        return index_value(result)

    return _mean(lw, window, count if sides else lambda _: constant(math.prod(window.size), "i64"), sides)


@_rule(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def _adaptive_max_pool(lw: Lowering, x: TensorValue, size: Any) -> tuple[TensorValue, ...]:
    val = lw.node.meta["val"][0]
    window, sides = _shared_out(lw, x, val, 2 if lw.node.target is aten.adaptive_max_pool2d.default else 3)
    if not sides:
        return _maxima(lw, window)
    only_first(lw)
    whole = _folded(lw, x, sides, "max", val)
    return (lw.formula(lambda index: cast(whole.at(index), x.dtype), whole.cost, val),) * 2
