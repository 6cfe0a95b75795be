"""Rules of grid_sample: each result is read at coordinates that come from data, between elements.

Coordinates are pixels: -1 and 1 of the grid are the middles (align_corners) or the outer edges of the first and last
one. What lies outside is no load: its place is tested as a number with a fraction, so that NaN is outside too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product

import torch

from firebrick.ir.index.expr import ZERO, Expr, as_expr, as_int, total, var
from firebrick.ir.loops.constructors import TRUE, cast, constant, index_value, load, op, where
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Value
from firebrick.lower.context import Declined, Lowering, rules
from firebrick.lower.tensors import TensorValue, contiguous_strides

aten = torch.ops.aten

RULES, _rule = rules()

_NEAREST, _BICUBIC = 1, 2
_ZEROS, _BORDER, _REFLECTION = range(3)
_MANY = 4
"""Channels from which on the places and weights of elements are stored."""
_EXACT = 1 << 24
"""Whole numbers up to which f32 holds all."""


@dataclass(frozen=True, slots=True)
class _Tap:
    """One of the elements along a dimension that a result is made of: its whole coordinate, its weight, and whether
    it is inside of the tensor."""

    at: Value
    weight: Value | None
    inside: Value


@dataclass(frozen=True, slots=True)
class _Side:
    """A dimension of the sampled tensor. last: a coordinate that is no number is the last place, else the first."""

    size: int
    padding: int
    align: bool
    last: bool

    def pixel(self, x: Value) -> Value:
        """The coordinate of the grid in pixels."""
        n, one, half = constant(self.size, x.dtype), constant(1, x.dtype), constant(0.5, x.dtype)
        if self.align:
            return op("mul", op("mul", op("add", x, one), half), op("sub", n, one))
        return op("mul", op("sub", op("mul", op("add", x, one), n), one), half)

    def padded(self, x: Value) -> Value:
        """The coordinate that is read in place of one outside."""
        if self.padding == _ZEROS:
            return x
        if self.padding == _REFLECTION:
            x = self._reflected(x)
        low, high = constant(0, x.dtype), constant(self.size - 1, x.dtype)
        return op("fmin", op("max", low, x), high) if self.last else op("min", high, op("fmax", x, low))

    def _reflected(self, x: Value) -> Value:
        low, span = (0.0, self.size - 1.0) if self.align else (-0.5, float(self.size))
        if not span:
            return constant(0, x.dtype)
        first, whole, half = (constant(n, x.dtype) for n in (low, span, 0.5))
        away = op("abs", op("sub", x, first))
        rest = op("fmod", away, whole)
        turns = op("mul", op("floor", op("div", away, whole)), half)
        even = op("eq", turns, op("floor", turns))
        return op("add", where(even, rest, op("sub", whole, rest)), first)

    def inside(self, x: Value) -> Value:
        """Whether a whole coordinate is one of an element."""
        return op("and", op("ge", x, constant(0, x.dtype)), op("le", x, constant(self.size - 1, x.dtype)))

    def tap(self, at: Value, weight: Value | None) -> _Tap:
        """The element at a whole coordinate that padding keeps inside, if there is padding."""
        return _Tap(at, weight, self.inside(at) if self.padding == _ZEROS else TRUE)


def _floor(x: Value) -> Value:
    """The greatest whole number that is not above, without a branch; any number for what i32 can't hold."""
    whole = cast(cast(x, "i32"), x.dtype)
    return op("sub", whole, where(op("gt", whole, x), constant(1, x.dtype), constant(0, x.dtype)))


def _taps(side: _Side, x: Value, mode: int) -> list[_Tap]:
    """The elements around a coordinate that `_Side.padded` gave."""
    if mode == _NEAREST:
        return [side.tap(op("round", x), None)]
    one, first = constant(1, x.dtype), _floor(x)
    behind = op("sub", x, first)
    second = op("add", first, one)
    return [side.tap(first, op("sub", one, behind)), _Tap(second, behind, side.inside(second))]


_Place = tuple[Expr, ...]
_Formula = Callable[[_Place], "Value"]


def _stored(lw: Lowering, grid: TensorValue, dtype: str, value: _Formula) -> _Formula:
    """What is the same for all channels, in memory."""
    shape = grid.shape[:-1]
    tensor = TensorValue(shape, dtype, contiguous_strides(shape), formula=value, parts=lw.parts)
    lw.realize(tensor)
    return tensor.at


def _along(lw: Lowering, grid: TensorValue, d: int, side: _Side, mode: int, compute: str) -> Callable[..., list[_Tap]]:
    """From a place of the grid to the elements along dimension `d`."""

    def pixel(at: _Place) -> Value:
        # The grid names the last dimension first.
        return side.pixel(cast(grid.at((*at, as_expr(grid.rank - 3 - d))), compute))

    def padded(at: _Place) -> Value:
        return side.padded(pixel(at))

    coordinate = _stored(lw, grid, compute, padded) if side.padding == _REFLECTION else padded
    return lambda at: _taps(side, coordinate(at), mode)


@_rule(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def _grid_sampler(lw: Lowering, x: TensorValue, grid: TensorValue, mode: int, padding: int, align: bool) -> TensorValue:
    sizes = [as_int(n) for n in x.shape[2:]]
    rank = len(sizes)
    if ZERO in (*x.shape, *grid.shape) or max(sizes) > _EXACT:
        raise Declined
    compute = DTYPES[x.dtype].compute
    channels = as_int(x.shape[1])
    if mode == _BICUBIC or (rank == 2 and x.dtype == "f32" and mode != _NEAREST):
        raise Declined  # the library's kernel keeps places and weights in registers for all channels
    lw.reread(grid)
    sides = [_Side(n, padding, align, rank == 3) for n in sizes]
    around = [_along(lw, grid, d, side, mode, compute) for d, side in enumerate(sides)]
    ref = lw.realize(x)

    reach = sum(as_int(s) * (n - 1) for s, n in zip(ref.strides[2:], sizes, strict=True))
    whole = "i32" if reach < 1 << 31 else "i64"

    def corner(choice: Sequence[int], at: _Place) -> list[_Tap]:
        return [taps(at)[k] for taps, k in zip(around, choice, strict=True)]

    def place(choice: Sequence[int], at: _Place) -> Value:
        """How far an element is from the first in memory, -1 outside."""
        taps = corner(choice, at)
        steps = [cast(cast(tap.at, "i32"), whole) for tap in taps]
        steps = [op("mul", n, index_value(s, whole)) for n, s in zip(steps, ref.strides[2:], strict=True)]
        inside = reduce(partial(op, "and"), [tap.inside for tap in taps])
        return where(inside, reduce(partial(op, "add"), steps), constant(-1, whole))

    def weight(choice: Sequence[int], at: _Place) -> Value:
        weights = [tap.weight for tap in corner(choice, at) if tap.weight is not None]
        return reduce(partial(op, "mul"), weights) if weights else constant(1, compute)

    count = 1 if mode == _NEAREST else 2
    corners: list[tuple[_Formula, _Formula]] = [
        (partial(place, c), partial(weight, c)) for c in product(range(count), repeat=rank)
    ]
    if channels >= _MANY:
        corners = [(_stored(lw, grid, whole, p), _stored(lw, grid, compute, w)) for p, w in corners]

    def element(at: Value, lead: _Place, weight: Value) -> Value:
        slot = var("x0", 0, reach)
        flat = ref.offset + total(i * s for i, s in zip(lead, ref.strides[:2], strict=True)) + slot
        # The first element is read for those outside: to choose whether to read takes longer.
        inside = op("ge", at, constant(0, whole))
        loaded = load(ref.buffer, x.dtype, flat, ((slot, cast(op("max", at, constant(0, whole)), "i64")),))
        value = op("mul", where(inside, cast(loaded, compute), constant(0, compute)), weight)
        # Of volumes eager leaves out what is outside, even where its weight is no number.
        return where(inside, value, constant(0, compute)) if rank == 3 else value

    def formula(index: _Place) -> Value:
        at = (index[0], *index[2:])
        elements = [element(p(at), index[:2], w(at)) for p, w in corners]
        return cast(reduce(partial(op, "add"), elements), x.dtype)

    return lw.formula(formula, 10 * count**rank)
