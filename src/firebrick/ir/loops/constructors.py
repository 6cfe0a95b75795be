"""Constructors of scalar values that check their arguments and simplify what is exact."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping

import torch

from firebrick.errors import InternalError
from firebrick.ir.index.expr import ZERO, Expr, Var, const, floordiv, maximum, minimum, mod
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Axis, Const, Index, Load, Masked, Op, Reduce, Scan, Value
from firebrick.ir.loops.scalar_ops import REDUCTIONS, SCALAR_OPS, SCANS, result_dtype


def constant(value: bool | int | float, dtype: str) -> Const:
    """A number as `dtype`, rounded or wrapped to what the type holds."""
    row = DTYPES[dtype]
    if row.is_float:
        number = float(value)
        if dtype == "f32":
            number = _to_f32(number)
        elif dtype != "f64":
            number = torch.tensor(number, dtype=torch.float64).to(row.torch).item()
        return Const(dtype, number)
    if row.kind == "bool":
        return Const(dtype, bool(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise InternalError(f"{value} as a constant of {dtype}")
    return Const(dtype, (int(value) - row.lo) % (1 << 8 * row.nbytes) + row.lo)


def _to_f32(number: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


TRUE = constant(True, "b8")
FALSE = constant(False, "b8")


def load(buffer: str, dtype: str, index: Expr, binds: tuple[tuple[Var, Value], ...] = ()) -> Load:
    """An element of a buffer."""
    return Load(dtype, buffer, index, binds)


def index_value(expr: Expr, dtype: str = "i64") -> Value:
    """The number that an index expression has."""
    if expr.is_const:
        return constant(expr.const, dtype)
    return Index(dtype, expr) if dtype in ("i64", "i32") else cast(Index("i64", expr), dtype)


def masked(cond: Value, body: Value, other: bool | int | float) -> Value:
    """`body` where `cond` holds, else the number `other`."""
    if cond is TRUE:
        return body
    fill = constant(other, body.dtype)
    return fill if cond is FALSE else Masked(body.dtype, cond, body, fill)


def reduce(name: str, axes: Iterable[Axis], body: Value) -> Value:
    """`body` folded over `axes`.

    Raises:
        InternalError: the reduction doesn't take the dtype of `body`.
    """
    row = REDUCTIONS[name]
    if DTYPES[body.dtype].kind not in row.takes:
        raise InternalError(f"reduction {name} of {body.dtype}")
    dtype = {"same": body.dtype, "bool": "b8", "i64": "i64"}[row.result]
    return Reduce(dtype, name, tuple(axes), body)


def running(name: str, along: Expr, body: Value) -> Value:
    """`body` folded over the iterations of a loop so far; `along` is its variable, or a number for a loop of one.

    Raises:
        InternalError: the reduction can't run, or doesn't take the dtype of `body`.
    """
    if name not in SCANS or DTYPES[body.dtype].kind == "bool":
        raise InternalError(f"running {name} of {body.dtype}")
    return Scan(body.dtype, name, along, body) if isinstance(along, Var) else body


def from_zero(value: Value) -> Value:
    """The sum of one element: zero and it, which is 0.0 for -0.0."""
    return op("add", value, constant(0, value.dtype))


def where(cond: Value, a: Value, b: Value) -> Value:
    """`a` where `cond` holds, else `b`."""
    return op("where", cond, a, b)


def cast(value: Value, dtype: str) -> Value:
    """`value` converted to `dtype` as Tensor.to does."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Const):
        folded = _cast_constant(value, dtype)
        if folded is not None:
            return folded
    if isinstance(value, Index) and dtype == "i64":
        return Index("i64", value.expr)
    if isinstance(value, Op) and value.name == "to":
        inner = value.args[0]
        # A detour over a type that holds every value of the first is no detour.
        if _holds(value.dtype, inner.dtype):
            return cast(inner, dtype)
    return Op(dtype, "to", (value,))


def op(name: str, *args: Value) -> Value:
    """A scalar function applied to values of one dtype (the condition of `where` is b8).

    Raises:
        InternalError: wrong number of arguments or dtypes; the rule that calls it is wrong.
    """
    row = SCALAR_OPS[name]
    dtype = args[-1].dtype
    uniform = args[1:] if name == "where" else args
    if len(args) != row.arity or any(a.dtype != dtype for a in uniform) or DTYPES[dtype].kind not in row.takes:
        raise InternalError(f"scalar function {name} of {', '.join(a.dtype for a in args)}")
    if name == "where" and args[0].dtype != "b8":
        raise InternalError(f"condition of where is {args[0].dtype}")
    simple = _simplify(name, args, dtype)
    return simple if simple is not None else Op(result_dtype(name, dtype), name, args)


# ---------------------------------------------------------------- simplification

_EXACT: frozenset[str] = frozenset(
    {"add", "sub", "mul", "div", "floordiv", "truncdiv", "mod", "fmod", "neg", "abs", "min", "max", "floor", "ceil"}
    | {"round", "trunc", "sqrt", "lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not", "where"}
    | {"bitand", "bitor", "bitxor", "bitnot", "shl", "shr"}
)
"""Functions that have one right result, so that folding their constants changes nothing."""

_HOLDS = {
    "f64": frozenset({"f64", "f32", "bf16", "f16", "i32", "i16", "i8", "u8", "b8"}),
    "f32": frozenset({"f32", "bf16", "f16", "i16", "i8", "u8", "b8"}),
    "i64": frozenset({"i64", "i32", "i16", "i8", "u8", "b8"}), "i32": frozenset({"i32", "i16", "i8", "u8", "b8"}),
    "i16": frozenset({"i16", "i8", "u8", "b8"}),
}  # fmt: skip


def _holds(wide: str, narrow: str) -> bool:
    return narrow in _HOLDS.get(wide, ())


def _cast_constant(value: Const, dtype: str) -> Value | None:
    number = value.value
    if isinstance(number, float) and not DTYPES[dtype].is_float:
        if dtype == "b8":
            return constant(number != 0, "b8")
        if not math.isfinite(number) or not DTYPES[dtype].lo <= number <= DTYPES[dtype].hi:
            return None  # what the machine does with it is not ours to say
    return constant(number, dtype)


def _is(value: Value, number: float) -> bool:
    """Whether it is this constant; 0 means 0 and not -0."""
    return (
        isinstance(value, Const) and value.value == number and math.copysign(1, value.value) == math.copysign(1, number)
    )


def _simplify(name: str, args: tuple[Value, ...], dtype: str) -> Value | None:
    a = args[0]
    if name in _EXACT and all(isinstance(x, Const) for x in args):
        return _fold(name, args, dtype)
    if dtype == "i64" and (name in _INDEX_OPS or name in _INDEX_TESTS):
        simplified = _on_indices(name, args)
        if simplified is not None:
            return simplified
    if len(args) == 1:
        if name in ("neg", "not", "bitnot") and isinstance(a, Op) and a.name == name:
            return a.args[0]
        return None
    if name == "where":
        if isinstance(a, Const):
            return args[1] if a.value else args[2]
        return args[1] if args[1] is args[2] else None
    return _simplify_pair(name, a, args[1], dtype)


def _simplify_pair(name: str, a: Value, b: Value, dtype: str) -> Value | None:
    whole = not DTYPES[dtype].is_float
    match name:
        case "mul":
            if _is(b, 1):
                return a
            if _is(a, 1):
                return b
            if whole and (_is(a, 0) or _is(b, 0)):
                return constant(0, dtype)
        case "div" if _is(b, 1):
            return a
        case "add":
            # x + 0.0 is not x where x is -0.0.
            zero = 0 if whole else -0.0
            if _is(b, zero):
                return a
            if _is(a, zero):
                return b
        case "sub" if _is(b, 0):
            return a
        case "and":
            return _absorb(a, b, neutral=TRUE, absorbing=FALSE)
        case "or":
            return _absorb(a, b, neutral=FALSE, absorbing=TRUE)
        case "min" | "max" if a is b:
            return a
    return None


_INDEX_OPS: Mapping[str, Callable[..., Expr]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "neg": operator.neg, "floordiv": floordiv,
    "mod": mod, "min": minimum, "max": maximum,
}  # fmt: skip
"""Scalar function -> the same of index expressions."""

_INDEX_TESTS: Mapping[str, Callable[[Expr], bool | None]] = {
    "lt": lambda d: True if d.hi < 0 else (False if d.lo >= 0 else None),
    "le": lambda d: True if d.hi <= 0 else (False if d.lo > 0 else None),
    "gt": lambda d: True if d.lo > 0 else (False if d.hi <= 0 else None),
    "ge": lambda d: True if d.lo >= 0 else (False if d.hi < 0 else None),
    "eq": lambda d: True if d is ZERO else (False if d.lo > 0 or d.hi < 0 else None),
    "ne": lambda d: False if d is ZERO else (True if d.lo > 0 or d.hi < 0 else None),
}
"""Comparison -> what is certain of it, given the difference of its sides."""


def _on_indices(name: str, args: tuple[Value, ...]) -> Value | None:
    """Do arithmetic of numbers that indices have in the index algebra, and comparisons where they are certain."""
    sides: list[Expr] = []
    for a in args:
        if isinstance(a, Index):
            sides.append(a.expr)
        elif isinstance(a, Const):
            sides.append(const(int(a.value)))
        else:
            return None
    if name in _INDEX_TESTS:
        truth = _INDEX_TESTS[name](sides[0] - sides[1])
        return None if truth is None else constant(truth, "b8")
    if name in ("floordiv", "mod") and not (sides[1].is_const and sides[1].const > 0):
        return None
    index = _INDEX_OPS[name](*sides)
    # Kernels compute indices in 64 bits; nothing near that range is left to the algebra.
    return index_value(index) if index.lo > -_SAFE and index.hi < _SAFE else None


_SAFE = 1 << 62


def _absorb(a: Value, b: Value, neutral: Value, absorbing: Value) -> Value | None:
    if a is absorbing or b is absorbing:
        return absorbing
    if a is neutral or a is b:
        return b
    return a if b is neutral else None


def _fold(name: str, args: tuple[Value, ...], dtype: str) -> Value | None:
    tensors = [torch.tensor(a.value, dtype=DTYPES[a.dtype].torch) for a in args if isinstance(a, Const)]
    result = SCALAR_OPS[name].reference(*tensors)
    return constant(result.item(), result_dtype(name, dtype))
