"""The closed vocabulary of scalar functions and reductions.

`SCALAR_OPS` has one row a function: every stage that treats scalar functions (reference interpreter, C++, Triton)
has one row a name of this table, and a test walks them. All arguments of a function have one dtype, except where
its `takes` says otherwise. The reference is a torch function on tensors; what it computes is the meaning.

Floating-point functions compute in f32 or f64: rules cast bf16 and f16 to f32 first and back at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from firebrick.ir.loops.dtypes import DTYPES


@dataclass(frozen=True, slots=True)
class ScalarOp:
    """One scalar function.

    result: "same" (dtype of the arguments), "bool" (b8), or "cast" (the node's dtype says it).
    takes: kinds of dtype that it accepts, of "float int uint bool"; "where" has a b8 condition first.
    cost: rough price in additions, for the choice between computing again and storing.
    """

    name: str
    arity: int
    result: str
    takes: str
    reference: Callable[..., Tensor]
    doc: str
    cost: int = 1


@dataclass(frozen=True, slots=True)
class Reduction:
    """One way to fold values. combine: scalar function of two, or "" where the result is a position.

    takes: kinds of dtype. result: "same", "bool" or "i64". reference: folds the last dimension of a tensor.
    """

    name: str
    combine: str
    result: str
    takes: str
    reference: Callable[[Tensor], Tensor]
    doc: str


_NUMBER = "float int uint"
_WHOLE = "int uint"
_ANY = "float int uint bool"


def _divides(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Of integers, 0 where the divisor is 0: unlike eager, a kernel may not trap; rules that divide by data keep
    eager's check."""

    def divided(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype.is_floating_point:
            return function(a, b)
        return torch.where(b == 0, 0, function(a, torch.where(b == 0, 1, b)))

    return divided


_floordiv, _truncdiv = (_divides(partial(torch.div, rounding_mode=mode)) for mode in ("floor", "trunc"))
_mod, _fmod = _divides(torch.remainder), _divides(torch.fmod)


def _cast(a: Tensor) -> Tensor:
    raise AssertionError("the interpreter casts to the dtype of the node")


_OPS = (
    # Arithmetic; integers wrap around.
    ScalarOp("add", 2, "same", _NUMBER, torch.add, "a + b"),
    ScalarOp("sub", 2, "same", _NUMBER, torch.sub, "a - b"),
    ScalarOp("mul", 2, "same", _NUMBER, torch.mul, "a * b"),
    ScalarOp("div", 2, "same", "float", torch.div, "a / b", 4),
    ScalarOp("floordiv", 2, "same", _NUMBER, _floordiv, "quotient rounded down; integers give 0 if b is 0", 8),
    ScalarOp("truncdiv", 2, "same", _NUMBER, _truncdiv, "quotient rounded to zero; integers give 0 if b is 0", 8),
    ScalarOp("mod", 2, "same", _NUMBER, _mod, "remainder with the sign of b; integers give 0 if b is 0", 8),
    ScalarOp("fmod", 2, "same", _NUMBER, _fmod, "remainder with the sign of a; integers give 0 if b is 0", 8),
    ScalarOp("neg", 1, "same", _NUMBER, torch.neg, "-a"),
    ScalarOp("abs", 1, "same", _NUMBER, torch.abs, "absolute value"),
    ScalarOp("sign", 1, "same", _NUMBER, torch.sign, "-1, 0 or 1; as torch.sign for NaN", 2),
    ScalarOp("min", 2, "same", _ANY, torch.minimum, "lesser; NaN if one is"),
    ScalarOp("max", 2, "same", _ANY, torch.maximum, "greater; NaN if one is"),
    ScalarOp("fmin", 2, "same", "float", torch.fmin, "lesser; the other if one is NaN", 2),
    ScalarOp("fmax", 2, "same", "float", torch.fmax, "greater; the other if one is NaN", 2),
    ScalarOp("copysign", 2, "same", "float", torch.copysign, "size of a with the sign of b"),
    ScalarOp("nextafter", 2, "same", "float", torch.nextafter, "next number after a towards b", 20),
    ScalarOp("hypot", 2, "same", "float", torch.hypot, "square root of a*a + b*b without overflow", 20),
    # Rounding
    ScalarOp("floor", 1, "same", "float", torch.floor, "rounded down"),
    ScalarOp("ceil", 1, "same", "float", torch.ceil, "rounded up"),
    ScalarOp("round", 1, "same", "float", torch.round, "rounded to nearest, ties to even"),
    ScalarOp("trunc", 1, "same", "float", torch.trunc, "rounded to zero"),
    # Powers, exponentials, logarithms
    ScalarOp("sqrt", 1, "same", "float", torch.sqrt, "square root", 4),
    ScalarOp("rsqrt", 1, "same", "float", torch.rsqrt, "1 / sqrt(a)", 8),
    ScalarOp("pow", 2, "same", "float", torch.pow, "a to the power b", 60),
    ScalarOp("exp", 1, "same", "float", torch.exp, "e to the power a", 20),
    ScalarOp("exp2", 1, "same", "float", torch.exp2, "2 to the power a", 20),
    ScalarOp("expm1", 1, "same", "float", torch.expm1, "exp(a) - 1", 30),
    ScalarOp("log", 1, "same", "float", torch.log, "natural logarithm", 20),
    ScalarOp("log2", 1, "same", "float", torch.log2, "logarithm to base 2", 20),
    ScalarOp("log10", 1, "same", "float", torch.log10, "logarithm to base 10", 20),
    ScalarOp("log1p", 1, "same", "float", torch.log1p, "log(1 + a)", 30),
    ScalarOp("logaddexp", 2, "same", "float", torch.logaddexp, "log(exp(a) + exp(b))", 60),
    ScalarOp("sigmoid", 1, "same", "float", torch.sigmoid, "1 / (1 + exp(-a))", 25),
    # Trigonometric and hyperbolic
    ScalarOp("sin", 1, "same", "float", torch.sin, "sine", 30),
    ScalarOp("cos", 1, "same", "float", torch.cos, "cosine", 30),
    ScalarOp("tan", 1, "same", "float", torch.tan, "tangent", 40),
    ScalarOp("asin", 1, "same", "float", torch.asin, "inverse sine", 30),
    ScalarOp("acos", 1, "same", "float", torch.acos, "inverse cosine", 30),
    ScalarOp("atan", 1, "same", "float", torch.atan, "inverse tangent", 30),
    ScalarOp("atan2", 2, "same", "float", torch.atan2, "angle of the point (b, a)", 40),
    ScalarOp("sinh", 1, "same", "float", torch.sinh, "hyperbolic sine", 40),
    ScalarOp("cosh", 1, "same", "float", torch.cosh, "hyperbolic cosine", 40),
    ScalarOp("tanh", 1, "same", "float", torch.tanh, "hyperbolic tangent", 30),
    ScalarOp("asinh", 1, "same", "float", torch.asinh, "inverse hyperbolic sine", 40),
    ScalarOp("acosh", 1, "same", "float", torch.acosh, "inverse hyperbolic cosine", 40),
    ScalarOp("atanh", 1, "same", "float", torch.atanh, "inverse hyperbolic tangent", 40),
    # Special functions
    ScalarOp("erf", 1, "same", "float", torch.erf, "error function", 30),
    ScalarOp("erfc", 1, "same", "float", torch.erfc, "1 - erf(a)", 40),
    ScalarOp("lgamma", 1, "same", "float", torch.lgamma, "logarithm of the absolute value of gamma", 80),
    # Tests and comparisons
    ScalarOp("isnan", 1, "bool", "float", torch.isnan, "whether a is NaN"),
    ScalarOp("isinf", 1, "bool", "float", torch.isinf, "whether a is an infinity"),
    ScalarOp("signbit", 1, "bool", "float", torch.signbit, "whether the sign bit is set"),
    ScalarOp("lt", 2, "bool", _ANY, torch.lt, "a < b"),
    ScalarOp("le", 2, "bool", _ANY, torch.le, "a <= b"),
    ScalarOp("gt", 2, "bool", _ANY, torch.gt, "a > b"),
    ScalarOp("ge", 2, "bool", _ANY, torch.ge, "a >= b"),
    ScalarOp("eq", 2, "bool", _ANY, torch.eq, "a == b"),
    ScalarOp("ne", 2, "bool", _ANY, torch.ne, "a != b"),
    # Logic on b8
    ScalarOp("and", 2, "bool", "bool", torch.logical_and, "both"),
    ScalarOp("or", 2, "bool", "bool", torch.logical_or, "one or both"),
    ScalarOp("xor", 2, "bool", "bool", torch.logical_xor, "exactly one"),
    ScalarOp("not", 1, "bool", "bool", torch.logical_not, "not a"),
    # Bits of integers
    ScalarOp("bitand", 2, "same", _WHOLE, torch.bitwise_and, "a & b"),
    ScalarOp("bitor", 2, "same", _WHOLE, torch.bitwise_or, "a | b"),
    ScalarOp("bitxor", 2, "same", _WHOLE, torch.bitwise_xor, "a ^ b"),
    ScalarOp("bitnot", 1, "same", _WHOLE, torch.bitwise_not, "~a"),
    ScalarOp("shl", 2, "same", _WHOLE, torch.bitwise_left_shift, "a << b; 0 if b is not in 0..bits-1"),
    ScalarOp(
        "shr",
        2,
        "same",
        _WHOLE,
        torch.bitwise_right_shift,
        "a >> b, keeping the sign; -1 or 0 if b is not in 0..bits-1",
    ),
    # Selection and conversion
    ScalarOp("where", 3, "same", _ANY, torch.where, "b where a, a b8, holds, else c"),
    ScalarOp("drawn", 7, "bool", "int", _cast, "whether the word that eager draws for element a is below g", 30),
    ScalarOp("to", 1, "cast", _ANY, _cast, "conversion to the node's dtype, as Tensor.to"),
)

SCALAR_OPS: dict[str, ScalarOp] = {row.name: row for row in _OPS}
"""Name -> scalar function."""

_REDUCTIONS = (
    Reduction("sum", "add", "same", _NUMBER, lambda x: x.sum(-1, dtype=x.dtype), "sum; 0 of nothing"),
    Reduction("prod", "mul", "same", _NUMBER, lambda x: x.prod(-1, dtype=x.dtype), "product; 1 of nothing"),
    Reduction("max", "max", "same", _ANY, lambda x: x.amax(-1), "greatest; NaN if one is"),
    Reduction("min", "min", "same", _ANY, lambda x: x.amin(-1), "least; NaN if one is"),
    Reduction("logsumexp", "logaddexp", "same", "float", lambda x: x.logsumexp(-1), "log of the sum of exponentials"),
    Reduction("any", "or", "bool", "bool", lambda x: x.any(-1), "whether one holds; no of nothing"),
    Reduction("all", "and", "bool", "bool", lambda x: x.all(-1), "whether all hold; yes of nothing"),
    Reduction("argmax", "", "i64", _NUMBER, lambda x: x.argmax(-1), "position of the first greatest or first NaN"),
    Reduction("argmin", "", "i64", _NUMBER, lambda x: x.argmin(-1), "position of the first least or first NaN"),
)

REDUCTIONS: dict[str, Reduction] = {row.name: row for row in _REDUCTIONS}
"""Name -> reduction."""


SCANS: Mapping[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, d: x.cumsum(d, dtype=x.dtype), "prod": lambda x, d: x.cumprod(d, dtype=x.dtype),
    "logsumexp": torch.logcumsumexp, "max": lambda x, d: x.cummax(d).values, "min": lambda x, d: x.cummin(d).values,
}  # fmt: skip
"""Reductions that may also run along a loop; the reference runs along a dimension of a tensor."""


def result_dtype(name: str, dtype: str) -> str:
    """Dtype of the result of a scalar function whose (last) argument has `dtype`."""
    return "b8" if SCALAR_OPS[name].result == "bool" else dtype


def reduction_identity(name: str, dtype: str) -> bool | int | float:
    """The value from which a reduction of `dtype` starts; for positions, the value that every other beats."""
    row = DTYPES[dtype]
    if name in ("sum", "prod"):
        start = int(name == "prod")
        return float(start) if row.is_float else start
    least, greatest = (-math.inf, math.inf) if row.is_float else (row.lo, row.hi)
    if row.kind == "bool":
        least, greatest = False, True
    return {"any": False, "all": True, "logsumexp": -math.inf, "max": least, "min": greatest}[name.removeprefix("arg")]
