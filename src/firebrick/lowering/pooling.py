"""Rules of windows: pooling with small windows is unrolled to a formula of the elements under the window."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import torch

from firebrick.loops.build import TRUE, cast, constant, index_value, masked, op
from firebrick.loops.dtypes import BY_TORCH, DTYPES
from firebrick.loops.ops import reduction_identity
from firebrick.lowering.context import Declined, Lowering, rules
from firebrick.symbolic.expr import Expr, as_int, maximum, minimum

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from firebrick.loops.ir import Value
    from firebrick.lowering.tensors import TensorValue

__all__ = ["RULES"]

aten = torch.ops.aten

RULES, _rule = rules()

UNROLLED = 16
"""Elements of the largest window that is unrolled; larger ones are the library's."""


class _Window:
    """A window over the last dimensions of a tensor: which elements it covers for an output index."""

    def __init__(
        self, x: TensorValue, size: Sequence[int], stride: Sequence[int], pad: Sequence[int], dilation: Sequence[int]
    ) -> None:
        self.x, self.rank = x, len(size)
        self.size, self.stride, self.pad, self.dilation = list(size), list(stride), list(pad), list(dilation)
        self.extent = [as_int(n) for n in x.shape[x.rank - self.rank :]]

    def elements(self, index: tuple[Expr, ...]) -> Iterator[tuple[Value, tuple[Expr, ...]]]:
        """Whether each element is inside of the tensor, and where it is."""
        lead = index[: self.x.rank - self.rank]
        at = index[self.x.rank - self.rank :]
        for offsets in product(*(range(n) for n in self.size)):
            place = [
                i * s + (k * d - p)
                for i, s, k, d, p in zip(at, self.stride, offsets, self.dilation, self.pad, strict=True)
            ]
            inside: Value = TRUE
            for e, n in zip(place, self.extent, strict=True):
                inside = op("and", inside, op("ge", index_value(e), constant(0, "i64")))
                inside = op("and", inside, op("lt", index_value(e), constant(n, "i64")))
            yield inside, (*lead, *place)

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


def _spread(value: Any, rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _window(lw: Lowering, x: TensorValue, rank: int, size: Any, stride: Any, pad: Any, dilation: Any = 1) -> _Window:
    sizes = _spread(size, rank)
    if math.prod(sizes) > UNROLLED or not DTYPES[x.dtype].is_float:
        raise Declined
    lw.realize(x)  # windows overlap: an element is read several times
    return _Window(x, sizes, _spread(stride or sizes, rank), _spread(pad, rank), _spread(dilation, rank))


@_rule(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def _max_pool(
    lw: Lowering,
    x: TensorValue,
    size: Any,
    stride: Any = (),
    pad: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[TensorValue, ...]:
    """The maximum alone; where the places of the maxima are used too, the library's kernel finds both."""
    if any(user.args[1] != 0 and user.users for user in lw.node.users):
        raise Declined
    rank = 2 if lw.node.target is aten.max_pool2d_with_indices.default else 3
    window = _window(lw, x, rank, size, stride, pad, dilation)
    val = lw.node.meta["val"][0]
    lowest = reduction_identity("max", x.dtype)

    def formula(index: tuple[Expr, ...]) -> Value:
        result: Value | None = None
        for inside, at in window.elements(index):
            element = cast(masked(inside, x.at(at), lowest), DTYPES[x.dtype].compute)
            result = element if result is None else op("max", result, element)
        assert result is not None
        return cast(result, x.dtype)

    values = lw.formula(formula, 3 * math.prod(window.size), val)
    return (values, values)


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
    out = BY_TORCH[lw.node.meta["val"].dtype].name
    compute = DTYPES[out].compute

    def formula(index: tuple[Expr, ...]) -> Value:
        result: Value = constant(0.0, compute)
        for inside, at in window.elements(index):
            result = op("add", result, cast(masked(inside, x.at(at), 0.0), compute))
        n = constant(divisor, "i64") if divisor else index_value(window.count(index, count_include_pad))
        return cast(op("div", result, cast(n, compute)), out)

    return lw.formula(formula, 3 * math.prod(window.size))
