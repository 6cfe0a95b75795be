"""Rules of reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from firebrick.ir.index.expr import ZERO, Expr, product
from firebrick.ir.loops.constructors import cast, constant, index_value, op
from firebrick.ir.loops.dtypes import BY_TORCH, DTYPES
from firebrick.ir.loops.program import Value
from firebrick.lower.context import Declined, Lowering, rules
from firebrick.lower.tensors import TensorValue, contiguous_strides

aten = torch.ops.aten

RULES, _rule = rules()


def _dims(x: TensorValue, dim: Any) -> list[int]:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.rank))
    return [dim] if isinstance(dim, int) else list(dim)


def _out(lw: Lowering, fake: torch.Tensor | None = None) -> str:
    return BY_TORCH[(lw.node.meta["val"] if fake is None else fake).dtype].name


def count(x: TensorValue, dims: Sequence[int]) -> Expr:
    """How many elements are folded into one."""
    return product(x.shape[d] for d in dims) if x.rank else product(())


def divide(value: Value, n: Expr) -> Value:
    """Division by a count."""
    return op("div", value, cast(index_value(n), value.dtype))


def _fold(
    lw: Lowering,
    name: str,
    x: TensorValue,
    dims: Sequence[int],
    keepdim: bool,
    dtype: str,
    pre: Callable[[Value], Value] = lambda v: v,
    post: Callable[[Value], Value] = lambda v: v,
    fake: torch.Tensor | None = None,
) -> TensorValue:
    """Fold elements cast to `dtype`; the result is cast to the node's dtype."""
    val = lw.node.meta["val"] if fake is None else fake
    return lw.reduction(
        name,
        x,
        dims,
        body=lambda v, _: pre(cast(v, dtype)),
        finish=lambda v, _: cast(post(v), _out(lw, val)),
        keepdim=keepdim,
        fake=val,
    )


def _sums(name: str, lw: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False, **_: Any) -> TensorValue:
    """Sums and products, in the dtype that eager adds up in."""
    return _fold(lw, name, x, _dims(x, dim), keepdim, DTYPES[_out(lw)].accumulate)


def _extreme(name: str, lw: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False) -> TensorValue:
    """The greatest or least element, or its place."""
    return _fold(lw, name, x, _dims(x, dim), keepdim, DTYPES[x.dtype].compute)


def _any(lw: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False) -> TensorValue:
    dims = [] if isinstance(dim, (list, tuple)) and not dim and x.rank else _dims(x, dim)
    return _fold(lw, "any", x, dims, keepdim, "b8")


@_rule(aten.mean.default, aten.mean.dim)
def _mean(
    lw: Lowering, x: TensorValue, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TensorValue:
    dims = _dims(x, dim)
    n = count(x, dims)
    return _fold(lw, "sum", x, dims, keepdim, DTYPES[_out(lw)].accumulate, post=lambda v: divide(v, n))


def _best(
    lw: Lowering, x: TensorValue, dim: int, keepdim: bool = False, *, name: str
) -> tuple[TensorValue, TensorValue]:
    compute = DTYPES[x.dtype].compute
    if compute == "b8":
        raise Declined
    lw.share(x)
    values, places = lw.node.meta["val"]
    best = _fold(lw, name, x, _dims(x, dim), keepdim, compute, fake=values)
    return best, _fold(lw, f"arg{name}", x, _dims(x, dim), keepdim, compute, fake=places)


def mean_and_variance(
    lw: Lowering, x: TensorValue, dims: Sequence[int], compute: str, correction: float = 0
) -> tuple[TensorValue, TensorValue]:
    """Mean and variance over `dims`, kept with size 1, in two passes; both of dtype `compute`.

    The second pass sums what is left of the first one's rounding, by which both are mended (Chan, Golub, LeVeque,
    "Algorithms for Computing the Sample Variance", American Statistician 37:3, 1983, eq. 1.7): the mean of equal
    numbers is that number, and they vary by 0.
    """
    lw.share(x)
    n = count(x, dims)
    rough = lw.reduction("sum", x, dims, body=lambda v, _: cast(v, compute), finish=lambda v, _: divide(v, n))

    def apart(v: Value, at: tuple[Expr, ...]) -> Value:
        return op("sub", cast(v, compute), rough.at(at))

    def square(v: Value, at: tuple[Expr, ...]) -> Value:
        d = apart(v, at)
        return op("mul", d, d)

    rest = lw.reduction("sum", x, dims, body=apart, finish=lambda v, _: divide(v, n))

    def mended(index: tuple[Expr, ...]) -> Value:
        return op("add", rough.at(index), rest.at(index))

    def scale(v: Value, at: tuple[Expr, ...]) -> Value:
        off = rest.at(at)
        zero = constant(0.0, compute)
        if correction == 0:
            return op("max", op("sub", divide(v, n), op("mul", off, off)), zero)
        total = cast(index_value(n), compute)
        free = op("max", op("sub", total, constant(correction, compute)), zero)
        return op("div", op("max", op("sub", v, op("mul", total, op("mul", off, off))), zero), free)

    variance = lw.reduction("sum", x, dims, body=square, finish=scale)
    mean = TensorValue(rough.shape, compute, rough.strides, formula=mended, cost=1)
    lw.realize(mean)
    return mean, variance


def _moments(
    lw: Lowering, x: TensorValue, dim: Any = None, *, correction: float | None = None, keepdim: bool = False
) -> TensorValue | tuple[TensorValue, ...]:
    """Variance, and the mean if the node has it as a second result; each in the layout of its fake."""
    fakes = lw.node.meta["val"]
    dims = sorted(d % x.rank for d in _dims(x, dim)) if x.rank else []
    compute = DTYPES[x.dtype].accumulate
    mean, variance = mean_and_variance(lw, x, dims, compute, 1 if correction is None else correction)

    def expose(value: TensorValue, fake: torch.Tensor) -> TensorValue:
        def formula(index: tuple[Expr, ...]) -> Value:
            at = list(index)
            if not keepdim:
                for d in dims:
                    at.insert(d, ZERO)
            return cast(value.at(tuple(at)), BY_TORCH[fake.dtype].name)

        return lw.formula(formula, 4, fake)

    if isinstance(fakes, torch.Tensor):
        return expose(variance, fakes)
    return expose(variance, fakes[0]), expose(mean, fakes[1])


RULES.update(
    {
        **dict.fromkeys((aten.sum.default, aten.sum.dim_IntList), partial(_sums, "sum")),
        **dict.fromkeys((aten.prod.default, aten.prod.dim_int), partial(_sums, "prod")),
        **dict.fromkeys((aten.amax.default, aten.max.default), partial(_extreme, "max")),
        **dict.fromkeys((aten.amin.default, aten.min.default), partial(_extreme, "min")),
        aten.argmax.default: partial(_extreme, "argmax"),
        aten.argmin.default: partial(_extreme, "argmin"),
        aten.max.dim: partial(_best, name="max"),
        aten.min.dim: partial(_best, name="min"),
        **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _any),
        **dict.fromkeys((aten.var.correction, aten.var_mean.correction), _moments),
    }
)


@_rule(aten.linalg_vector_norm.default)
def _vector_norm(
    lw: Lowering,
    x: TensorValue,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> TensorValue:
    compute, dims = DTYPES[_out(lw)].accumulate, _dims(x, dim)
    if x.dtype not in ("f32", "f64", "bf16", "f16"):
        raise Declined
    if ord == 2:
        return _fold(lw, "sum", x, dims, keepdim, compute, lambda v: op("mul", v, v), lambda v: op("sqrt", v))
    if ord == 1:
        return _fold(lw, "sum", x, dims, keepdim, compute, lambda v: op("abs", v))
    if ord in (math.inf, -math.inf):
        return _fold(lw, "max" if ord > 0 else "min", x, dims, keepdim, compute, lambda v: op("abs", v))
    raise Declined


@_rule(aten._softmax.default)
def _softmax(lw: Lowering, x: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    """exp(x - max) / sum of it, as four nests that the scheduler fuses."""
    out, compute = _out(lw), DTYPES[_out(lw)].accumulate
    if DTYPES[out].kind != "float":  # whole numbers, of which eager takes none
        raise Declined
    e = _shifted_exp(lw, x, dim, compute)[0]
    lw.realize(e)
    total = lw.reduction("sum", e, _dims(x, dim), body=lambda v, _: v)
    at_row = _row(x, dim)
    return lw.formula(lambda index: cast(op("div", e.at(index), total.at(at_row(index))), out), 5)


@_rule(aten._log_softmax.default)
def _log_softmax(lw: Lowering, x: TensorValue, dim: int, half_to_float: bool) -> TensorValue:
    """(x - max) - log(sum(exp(x - max)))."""
    out, compute = _out(lw), DTYPES[_out(lw)].accumulate
    if DTYPES[out].kind != "float":  # whole numbers, of which eager takes none
        raise Declined
    e, high = _shifted_exp(lw, x, dim, compute)
    total = lw.reduction("sum", e, _dims(x, dim), body=lambda v, _: v, finish=lambda v, _: op("log", v))
    at_row = _row(x, dim)

    def formula(index: tuple[Expr, ...]) -> Value:
        shifted = op("sub", cast(x.at(index), compute), high.at(at_row(index)))
        return cast(op("sub", shifted, total.at(at_row(index))), out)

    return lw.formula(formula, 5)


def _shifted_exp(lw: Lowering, x: TensorValue, dim: int, compute: str) -> tuple[TensorValue, TensorValue]:
    """exp(x - max) as a formula, and the maximum."""
    lw.share(x)
    high = lw.reduction("max", x, _dims(x, dim), body=lambda v, _: cast(v, compute))
    at_row = _row(x, dim)

    def formula(index: tuple[Expr, ...]) -> Value:
        return op("exp", op("sub", cast(x.at(index), compute), high.at(at_row(index))))

    return TensorValue(x.shape, compute, contiguous_strides(x.shape), formula=formula, cost=24), high


def _row(x: TensorValue, dim: int) -> Callable[[tuple[Expr, ...]], tuple[Expr, ...]]:
    """The index of the row that an element belongs to, where `dim` has size 1."""
    if x.rank == 0:
        return lambda index: index
    d = dim % x.rank
    return lambda index: (*index[:d], ZERO, *index[d + 1 :])
