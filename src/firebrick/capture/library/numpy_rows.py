"""Functions of numpy written with torch's: one row a function, on tensors in place of arrays.

The dtype rules are numpy's: operands come promoted as numpy promotes them, and sums of small integers are wide.
Capture executes these functions in place of numpy's; tests walk the tables and compare with numpy.
"""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, D103  these functions stand for untyped library code
# mypy: ignore-errors

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch


class Refused(Exception):
    """A row can't give what numpy gives for these arguments."""


@dataclass(frozen=True, slots=True)
class Ufunc:
    """An elementwise function: `function` does to operands of numpy's loop dtype what numpy does.

    Args:
        function: of torch; operators take Python numbers on either side.
        kinds: dtypes of the operands, by `numpy.dtype.kind`, for which the results are the same.
        constant: for integers, the second operand must be a constant of which this holds.
    """

    function: Callable[..., Any]
    kinds: str = "f"
    constant: Callable[[Any], bool] | None = None


def _nonzero(number: Any) -> bool:
    return bool(number != 0)


def _natural(number: Any) -> bool:
    return bool(number >= 0)


_SAME_NAMES: Mapping[str, str] = {
    "f": "arccos arccosh arcsin arcsinh arctan arctan2 arctanh ceil copysign cos cosh deg2rad exp exp2 expm1 floor "
    "fmax fmin fmod hypot log log10 log1p log2 logaddexp logaddexp2 nextafter rad2deg reciprocal signbit sin sinh sqrt "
    "tan tanh trunc",
    "iuf": "isfinite isinf isnan",
    "iufc": "matmul square",
    "biuf": "logical_and logical_not logical_or logical_xor maximum minimum",
    "iu": "gcd lcm",
}
"""Dtypes of operands -> the elementwise functions that torch has under the same names."""

UFUNCS: Mapping[np.ufunc, Ufunc] = {
    **{
        getattr(np, name): Ufunc(getattr(torch, name), kinds)
        for kinds, names in _SAME_NAMES.items()
        for name in names.split()
    },
    np.add: Ufunc(operator.add, "biufc"),
    np.subtract: Ufunc(operator.sub, "iufc"),
    np.multiply: Ufunc(operator.mul, "biufc"),
    np.true_divide: Ufunc(operator.truediv, "fc"),
    np.floor_divide: Ufunc(operator.floordiv, "if", _nonzero),
    np.remainder: Ufunc(operator.mod, "if", _nonzero),
    np.power: Ufunc(operator.pow, "if", _natural),
    np.float_power: Ufunc(operator.pow),
    np.negative: Ufunc(operator.neg, "iufc"),
    np.positive: Ufunc(torch.clone, "iufc"),
    np.absolute: Ufunc(torch.abs, "iuf"),
    np.fabs: Ufunc(torch.abs),
    np.radians: Ufunc(torch.deg2rad),
    np.degrees: Ufunc(torch.rad2deg),
    np.rint: Ufunc(torch.round),
    np.less: Ufunc(operator.lt, "biuf"),
    np.less_equal: Ufunc(operator.le, "biuf"),
    np.greater: Ufunc(operator.gt, "biuf"),
    np.greater_equal: Ufunc(operator.ge, "biuf"),
    np.equal: Ufunc(operator.eq, "biufc"),
    np.not_equal: Ufunc(operator.ne, "biufc"),
    np.bitwise_and: Ufunc(operator.and_, "biu"),
    np.bitwise_or: Ufunc(operator.or_, "biu"),
    np.bitwise_xor: Ufunc(operator.xor, "biu"),
    np.invert: Ufunc(operator.invert, "biu"),
    np.left_shift: Ufunc(operator.lshift, "iu", _natural),
    np.right_shift: Ufunc(operator.rshift, "iu", _natural),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A function of numpy in torch's.

    Args:
        function: takes tensors for `operands`, dtypes of torch for `dtype`.
        operands: parameters that are arrays, or lists of arrays.
        promote: operands that are brought to one dtype by numpy's rules.
        floating: whether integers are computed in float64.
        scalar: whether a result without dimensions is a scalar.
        creates: whether the array is made by torch even of constants.
    """

    function: FunctionType
    operands: tuple[str, ...] = ("a",)
    promote: tuple[str, ...] = ()
    floating: bool = False
    scalar: bool = True
    creates: bool = False


ROWS: dict[Any, Row] = {}
"""Function of numpy -> its row."""


def _row(*functions: Any, operands: str = "a", promote: Any = "", **options: Any) -> Callable[[Any], Any]:
    together = operands if promote is True else promote

    def register(function: Any) -> Any:
        for one in functions:
            ROWS[one] = Row(function, tuple(operands.split()), tuple(together.split()), **options)
        return function

    return register


def _axes(a: Any, axis: Any) -> Any:
    if axis is None:
        return tuple(range(a.ndim))
    if isinstance(axis, int):
        return (axis,)
    if len(axis) == 0:
        raise Refused("axis=()")
    return tuple(axis)


def _wide(a: Any, dtype: Any) -> Any:
    """The dtype in which numpy adds."""
    if dtype is not None:
        return dtype
    if a.dtype is torch.uint8:
        raise Refused("a sum in uint64")
    return a.dtype if a.dtype.is_floating_point or a.dtype.is_complex else torch.int64


def _fractional(a: Any, dtype: Any) -> Any:
    if dtype is not None:
        return dtype
    return a.dtype if a.dtype.is_floating_point or a.dtype.is_complex else torch.float64


def _rows(functions: Mapping[Any, Any], **options: Any) -> None:
    for one, function in functions.items():
        _row(one, **options)(function)


# -- reductions -----------------------------------------------------------------------------------------


def prod(a, axis=None, dtype=None, *, keepdims=False):
    if axis is None and not keepdims:
        return torch.prod(a, dtype=_wide(a, dtype))
    if not isinstance(axis, int):
        raise Refused("a product over several axes")
    return torch.prod(a, axis, keepdim=keepdims, dtype=_wide(a, dtype))


def var(a, axis=None, dtype=None, *, ddof=0, keepdims=False):
    if a.ndim == 0:
        raise Refused("the variance of a scalar")
    return torch.var(a.to(_fractional(a, dtype)), _axes(a, axis), correction=ddof, keepdim=keepdims)


def std(a, axis=None, dtype=None, *, ddof=0, keepdims=False):
    return torch.sqrt(var(a, axis, dtype, ddof=ddof, keepdims=keepdims))


def ptp(a, axis=None, *, keepdims=False):
    return torch.amax(a, _axes(a, axis), keepdim=keepdims) - torch.amin(a, _axes(a, axis), keepdim=keepdims)


def _adds(function: Any, dtype_of: Any) -> Any:
    def reduction(a, axis=None, dtype=None, *, keepdims=False):
        return function(a, _axes(a, axis), keepdim=keepdims, dtype=dtype_of(a, dtype))

    return reduction


def _folds(function: Any, convert: Any = lambda a: a) -> Any:
    def reduction(a, axis=None, *, keepdims=False):
        return function(convert(a), _axes(a, axis), keepdim=keepdims)

    return reduction


def _finds(function: Any) -> Any:
    def position(a, axis=None, *, keepdims=False):
        if axis is None and keepdims:
            raise Refused("a place in all of the array, with its dimensions")
        return function(a.to(torch.uint8) if a.dtype is torch.bool else a, axis, keepdim=keepdims)

    return position


def count_nonzero(a, axis=None, *, keepdims=False):
    if axis is None:
        raise Refused("an int of Python")
    return torch.sum(a != 0, _axes(a, axis), keepdim=keepdims)


def trace(a, offset=0):
    if a.ndim != 2:
        raise Refused("the trace of a stack of matrices")
    diagonal = torch.diagonal(a, offset)
    return torch.sum(diagonal, dtype=_wide(diagonal, None))


_rows(
    {
        np.sum: _adds(torch.sum, _wide),
        np.nansum: _adds(torch.nansum, _wide),
        np.mean: _adds(torch.mean, _fractional),
        np.average: lambda a, axis=None: torch.mean(a, _axes(a, axis), dtype=_fractional(a, None)),
        **dict.fromkeys((np.max, np.amax), _folds(torch.amax)),
        **dict.fromkeys((np.min, np.amin), _folds(torch.amin)),
        np.any: _folds(torch.any, lambda a: a.to(torch.bool)),
        np.all: _folds(torch.all, lambda a: a.to(torch.bool)),
        np.argmax: _finds(torch.argmax),
        np.argmin: _finds(torch.argmin),
        np.prod: prod, np.var: var, np.std: std, np.ptp: ptp, np.count_nonzero: count_nonzero, np.trace: trace,
    }
)  # fmt: skip


@_row(np.median, floating=True)
def median(a, axis=None, *, keepdims=False):
    if not (axis is None or isinstance(axis, int)) or keepdims:
        raise Refused("the median over several axes")
    if axis is None:
        a, axis = a.reshape(-1), -1
    length = a.shape[axis]
    if length == 0:
        raise Refused("the median of nothing")
    ordered = torch.sort(a, axis).values
    last = ordered.select(axis, length - 1)
    middle = ordered.select(axis, length // 2)
    if length % 2 == 0:
        middle = (ordered.select(axis, length // 2 - 1) + middle) / 2
    return torch.where(torch.isnan(last), last, middle)


@_row(np.linalg.norm, operands="x", floating=True)
def norm(x, ord=None, axis=None, keepdims=False):
    if ord is not None and not (isinstance(axis, int) or (axis is None and x.ndim == 1)):
        raise Refused("the norm of a matrix")
    return torch.linalg.vector_norm(x, 2 if ord is None else ord, _axes(x, axis), keepdim=keepdims)


# -- along an axis -----------------------------------------------------------------------------------------


def _flat(function: Any) -> Any:
    """A function along an axis; None stands for that of all elements in a row."""

    def along(a, axis=None, *args, **options):
        return function(a.reshape(-1), 0, *args, **options) if axis is None else function(a, axis, *args, **options)

    return along


def _cumulative(function: Any) -> Any:
    def cumulative(a, axis=None, dtype=None):
        return _flat(function)(a, axis, dtype=_wide(a, dtype))

    return cumulative


@_row(np.argsort)
def argsort(a, axis=-1, kind=None):
    if kind != "stable" or axis is None:
        raise Refused("an order of equal elements that is not defined; kind='stable' is")
    return torch.argsort(a, dim=axis, stable=True)


@_row(np.searchsorted, operands="a v", promote=True)
def searchsorted(a, v, side="left"):
    return torch.searchsorted(a.contiguous(), v.contiguous(), side=side)


@_row(np.take, operands="a indices")
def take(a, indices, axis=None):
    if axis is None:
        a, axis = a.reshape(-1), 0
    elif axis < 0:
        axis += a.ndim
    return a[(slice(None),) * axis + (indices.to(torch.int64),)]


_row(np.take_along_axis, operands="arr indices")(
    lambda arr, indices, axis=-1: torch.take_along_dim(arr, indices.to(torch.int64), axis)
)


@_row(np.repeat)
def repeat(a, repeats, axis=None):
    if not isinstance(repeats, int):
        raise Refused("repeats that differ")
    return _flat(lambda b, d: torch.repeat_interleave(b, repeats, d))(a, axis)


_rows(
    {
        np.cumsum: _cumulative(torch.cumsum),
        np.cumprod: _cumulative(torch.cumprod),
        np.diff: lambda a, n=1, axis=-1: torch.diff(a, n, axis),
        np.sort: lambda a, axis=-1: _flat(torch.sort)(a, axis).values,
        np.roll: lambda a, shift, axis=None: torch.roll(a, shift, axis),
    }
)
_row(np.tile, operands="A")(lambda A, reps: torch.tile(A, (reps,) if isinstance(reps, int) else tuple(reps)))

# -- form -----------------------------------------------------------------------------------------------------


def expand_dims(a, axis):
    if not isinstance(axis, int):
        raise Refused("several new axes")
    return torch.unsqueeze(a, axis)


def squeeze(a, axis=None):
    for one in _axes(a, axis) if axis is not None else ():
        if a.shape[one] != 1:
            raise Refused("an axis that is not 1 long")
    return torch.squeeze(a) if axis is None else torch.squeeze(a, _axes(a, axis))


_rows(
    {
        np.reshape: lambda a, shape: torch.reshape(a, (shape,) if isinstance(shape, int) else tuple(shape)),
        np.ravel: lambda a: torch.reshape(a, (-1,)),
        np.transpose: lambda a, axes=None: _transpose(a, *(axes or ())),
        np.swapaxes: lambda a, axis1, axis2: torch.swapaxes(a, axis1, axis2),
        np.moveaxis: lambda a, source, destination: torch.movedim(a, source, destination),
        np.expand_dims: expand_dims,
        np.squeeze: squeeze,
        np.atleast_1d: lambda a: torch.atleast_1d(a),
        np.atleast_2d: lambda a: torch.atleast_2d(a),
        np.copy: lambda a: torch.clone(a),
        **dict.fromkeys((np.zeros_like, np.empty_like), lambda a, dtype=None: torch.zeros_like(a, dtype=dtype)),
        np.ones_like: lambda a, dtype=None: torch.ones_like(a, dtype=dtype),
        np.full_like: lambda a, fill_value, dtype=None: torch.full_like(a, fill_value, dtype=dtype),
    },
    scalar=False,
)


@_row(np.concatenate, operands="arrays", promote=True)
def concatenate(arrays, axis=0):
    if axis is None:
        return torch.cat([one.reshape(-1) for one in arrays])
    return torch.cat(list(arrays), axis)


_row(np.stack, operands="arrays", promote=True)(lambda arrays, axis=0: torch.stack(list(arrays), axis))
_rows(
    {
        np.hstack: lambda tup: torch.hstack(tuple(tup)),
        np.vstack: lambda tup: torch.vstack(tuple(tup)),
        np.column_stack: lambda tup: torch.column_stack(tuple(tup)),
    },
    operands="tup",
    promote=True,
)


@_row(np.split, operands="ary", scalar=False)
def split(ary, indices_or_sections, axis=0):
    if isinstance(indices_or_sections, int) and ary.shape[axis] % indices_or_sections:
        raise Refused("parts that are not equal")
    return list(torch.tensor_split(ary, indices_or_sections, axis))


_row(np.array_split, operands="ary", scalar=False)(
    lambda ary, indices_or_sections, axis=0: list(torch.tensor_split(ary, indices_or_sections, axis))
)


@_row(np.pad, operands="array")
def pad(array, pad_width, mode="constant", constant_values=0):
    if mode != "constant" or not isinstance(constant_values, (int, float)):
        raise Refused(f"mode {mode}")
    if isinstance(pad_width, int):
        pad_width = ((pad_width, pad_width),) * array.ndim
    elif isinstance(pad_width[0], int):
        pad_width = (tuple(pad_width),) * array.ndim
    widths = [width for pair in tuple(pad_width)[::-1] for width in pair]
    return torch.nn.functional.pad(array, widths, value=constant_values)


_rows({np.tril: lambda m, k=0: torch.tril(m, k), np.triu: lambda m, k=0: torch.triu(m, k)}, operands="m")


@_row(np.diag, operands="v")
def diag(v, k=0):
    if v.ndim != 1:
        raise Refused("a diagonal that can't be written to")
    return torch.diag(v, k)


# -- values -------------------------------------------------------------------------------------------------


_row(np.where, operands="condition x y", promote="x y")(
    lambda condition, x, y: torch.where(condition.to(torch.bool), x, y)
)


@_row(np.clip, operands="a a_min a_max", promote=True)
def clip(a, a_min=None, a_max=None):
    if a_min is None and a_max is None:
        raise Refused("no bounds")
    if a_min is not None:
        a = torch.maximum(a, a_min)
    return a if a_max is None else torch.minimum(a, a_max)


@_row(np.round, np.around)
def round_(a, decimals=0):
    if a.dtype.is_floating_point:
        return torch.round(a, decimals=decimals)
    if decimals < 0 or a.dtype is torch.bool:
        raise Refused("integers rounded to tens")
    return a.clone()


@_row(np.nan_to_num, operands="x")
def nan_to_num(x, copy=True, nan=0.0, posinf=None, neginf=None):
    if not copy or not x.dtype.is_floating_point:
        raise Refused("an array that is changed in place")
    return torch.nan_to_num(x, nan, posinf, neginf)


_row(np.isclose, operands="a b", promote=True, floating=True)(
    lambda a, b, rtol=1e-05, atol=1e-08, equal_nan=False: torch.isclose(a, b, rtol, atol, equal_nan)
)


@_row(np.sign, operands="x")
def sign(x):
    if x.dtype is torch.bool or x.dtype.is_complex:
        raise Refused("the sign of such numbers")
    signs = torch.sign(x)
    return torch.where(torch.isnan(x), x, signs) if x.dtype.is_floating_point else signs


# -- products ----------------------------------------------------------------------------------------------


def dot(a, b):
    if a.dtype is torch.bool:
        raise Refused("a product of bools")
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    if b.ndim > 2 or (b.ndim == 2 and a.ndim > 2):
        raise Refused("a product of stacks of matrices")
    return torch.matmul(a, b)


_rows(
    {
        np.dot: dot,
        np.inner: lambda a, b: dot(a, b) if a.dtype is torch.bool else torch.inner(a, b),  # which refuses bools
        np.outer: lambda a, b: torch.outer(a.reshape(-1), b.reshape(-1)),
        np.kron: lambda a, b: torch.kron(a, b),
    },
    operands="a b",
    promote=True,
)
_row(np.tensordot, operands="a b", promote=True, scalar=False)(lambda a, b, axes=2: torch.tensordot(a, b, axes))
_row(np.linalg.solve, operands="a b", promote=True, floating=True)(lambda a, b: torch.linalg.solve(a, b))
_rows({np.linalg.inv: lambda a: torch.linalg.inv(a), np.linalg.det: lambda a: torch.linalg.det(a)}, floating=True)

# -- new arrays ---------------------------------------------------------------------------------------------


def full(shape, fill_value, dtype=None):
    if dtype is None:
        kinds = {bool: torch.bool, int: torch.int64, float: torch.float64}
        if type(fill_value) not in kinds:
            raise Refused("such a value")
        dtype = kinds[type(fill_value)]
    return torch.full((shape,) if isinstance(shape, int) else tuple(shape), fill_value, dtype=dtype)


_rows(
    {
        **dict.fromkeys((np.zeros, np.empty), lambda shape, dtype=torch.float64: torch.zeros(shape, dtype=dtype)),
        np.ones: lambda shape, dtype=torch.float64: torch.ones(shape, dtype=dtype),
        np.full: full,
    },
    operands="",
    scalar=False,
    creates=True,
)

# -- methods -------------------------------------------------------------------------------------------------


def _astype(a, dtype):
    if a.dtype.is_complex and not dtype.is_complex:
        raise Refused("complex numbers made real")
    return a.to(dtype, copy=True)


def _reshape(a, *shape):
    return torch.reshape(a, shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)


def _transpose(a, *axes):
    if len(axes) == 1 and not isinstance(axes[0], int):
        axes = axes[0]
    return torch.permute(a, axes or tuple(range(a.ndim))[::-1])


METHODS: Mapping[str, Row] = {
    **{
        name: ROWS[getattr(np, name)]
        for name in (
            *("sum", "prod", "mean", "var", "std", "max", "min", "any", "all", "argmax", "argmin", "cumsum", "cumprod"),
            *("argsort", "take", "repeat", "ravel", "swapaxes", "squeeze", "clip", "round", "dot", "trace", "copy"),
        )
    },
    "astype": Row(_astype),
    "flatten": Row(lambda a: torch.clone(a).reshape(-1), scalar=False),
    "view": Row(lambda a: a.view(a.shape), scalar=False),
    "reshape": Row(_reshape, scalar=False),
    "transpose": Row(_transpose, scalar=False),
}
"""Method of arrays -> its row."""
