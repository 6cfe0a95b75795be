"""C++ text of scalar functions: one row a function and kind of dtype, for one value and for a vector of lanes.

Placeholders: {a} {b} {c} arguments, {t} type of the arguments (scalar or vector), {i} the signed integer type of the
same width and lanes, {f} "f" for f32 and "" for f64, {bits} width, {low} the least number of the integer type.
Vector rows see b8 as lanes of 0 and -1; comparisons give lanes of 0 and -1 in the width of their arguments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.targets.base import FunctionText

if TYPE_CHECKING:
    from collections.abc import Mapping


def _both(text: str) -> FunctionText:
    return FunctionText(text, text)


def _call(name: str) -> FunctionText:
    return FunctionText(f"__builtin_{name}{{f}}({{a}})")


_COMPARE: Mapping[str, str] = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}

_FLOAT: dict[str, FunctionText] = {
    "add": _both("{a} + {b}"),
    "sub": _both("{a} - {b}"),
    "mul": _both("{a} * {b}"),
    "div": _both("{a} / {b}"),
    "floordiv": FunctionText("fb_floordiv({a}, {b})", helper="floordiv_float"),
    "truncdiv": FunctionText("__builtin_trunc{f}({a} / {b})"),
    "mod": FunctionText("fb_mod({a}, {b})", helper="mod_float"),
    "fmod": FunctionText("__builtin_fmod{f}({a}, {b})"),
    "neg": _both("-{a}"),
    "abs": FunctionText("__builtin_fabs{f}({a})", "({t})(({i}){a} & ~{low})"),
    "sign": FunctionText(
        "({t})(({a} > 0) - ({a} < 0))", "({a} > 0 ? ({t}){{}} + 1 : ({t}){{}}) - ({a} < 0 ? ({t}){{}} + 1 : ({t}){{}})"
    ),
    # One value: a branch that only NaN takes around what is one instruction, else each comparison is a branch.
    "min": FunctionText("{a} != {a} ? {a} : {a} < {b} ? {a} : {b}", "({a} < {b}) | ({a} != {a}) ? {a} : {b}"),
    "max": FunctionText("{a} != {a} ? {a} : {a} > {b} ? {a} : {b}", "({a} > {b}) | ({a} != {a}) ? {a} : {b}"),
    "fmin": _both("({a} < {b}) | ({b} != {b}) ? {a} : {b}"),
    "fmax": _both("({a} > {b}) | ({b} != {b}) ? {a} : {b}"),
    "copysign": FunctionText("__builtin_copysign{f}({a}, {b})", "({t})((({i}){a} & ~{low}) | (({i}){b} & {low}))"),
    "nextafter": FunctionText("__builtin_nextafter{f}({a}, {b})"),
    "hypot": FunctionText("__builtin_hypot{f}({a}, {b})"),
    "floor": _call("floor"),
    "ceil": _call("ceil"),
    "round": _call("rint"),
    "trunc": _call("trunc"),
    "sqrt": _call("sqrt"),
    "rsqrt": FunctionText("1 / __builtin_sqrt{f}({a})"),
    "pow": FunctionText("__builtin_pow{f}({a}, {b})"),
    "atan2": FunctionText("__builtin_atan2{f}({a}, {b})"),
    "logaddexp": FunctionText("fb_logaddexp({a}, {b})", helper="logaddexp"),
    "sigmoid": FunctionText("1 / (1 + __builtin_exp{f}(-{a}))"),
    "lgamma": _call("lgamma"),
    "isnan": _both("{a} != {a}"),
    "isinf": FunctionText(
        "__builtin_fabs{f}({a}) == __builtin_inf{f}()", "({t})(({i}){a} & ~{low}) == ({t}){{}} + __builtin_inf{f}()"
    ),
    "signbit": FunctionText("(bool)__builtin_signbit({a})", "({i}){a} < 0"),
    **{name: _both(f"{{a}} {sign} {{b}}") for name, sign in _COMPARE.items()},
}
_LIBM = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc"
_FLOAT |= {name: _call(name) for name in _LIBM.split()}

_INT: dict[str, FunctionText] = {
    "add": _both("{a} + {b}"),
    "sub": _both("{a} - {b}"),
    "mul": _both("{a} * {b}"),
    "floordiv": FunctionText("fb_floordiv({a}, {b})", helper="divide_int"),
    "truncdiv": FunctionText("fb_truncdiv({a}, {b})", helper="divide_int"),
    "mod": FunctionText("fb_mod({a}, {b})", helper="divide_int"),
    "fmod": FunctionText("fb_fmod({a}, {b})", helper="divide_int"),
    "neg": _both("-{a}"),
    "abs": _both("{a} < 0 ? -{a} : {a}"),
    "sign": FunctionText("({t})(({a} > 0) - ({a} < 0))", "({t})({a} < 0) - ({t})({a} > 0)"),
    "min": _both("{a} < {b} ? {a} : {b}"),
    "max": _both("{a} > {b} ? {a} : {b}"),
    "bitand": _both("{a} & {b}"),
    "bitor": _both("{a} | {b}"),
    "bitxor": _both("{a} ^ {b}"),
    "bitnot": _both("~{a}"),
    "shl": FunctionText("({b} < 0 || {b} >= {bits}) ? ({t})0 : ({t})({a} << {b})"),
    "shr": FunctionText(
        "({b} < 0 || {b} >= {bits}) ? ({t})({a} < 0 ? -1 : 0) : ({t})({a} >> {b})",
        "({b} < 0 | {b} >= {bits}) ? {a} >> ({bits} - 1) : {a} >> {b}",
    ),
    **{name: _both(f"{{a}} {sign} {{b}}") for name, sign in _COMPARE.items()},
}

_BOOL: dict[str, FunctionText] = {
    "min": _both("{a} & {b}"),
    "max": _both("{a} | {b}"),
    "and": _both("{a} & {b}"),
    "or": _both("{a} | {b}"),
    "xor": _both("{a} ^ {b}"),
    "not": FunctionText("!{a}", "~{a}"),
    # As numbers, lanes of -1 are true, so the order is turned round.
    "lt": FunctionText("{a} < {b}", "{a} > {b}"),
    "le": FunctionText("{a} <= {b}", "{a} >= {b}"),
    "gt": FunctionText("{a} > {b}", "{a} < {b}"),
    "ge": FunctionText("{a} >= {b}", "{a} <= {b}"),
    "eq": _both("{a} == {b}"),
    "ne": _both("{a} != {b}"),
}

ROWS: Mapping[str, Mapping[str, FunctionText]] = {"float": _FLOAT, "int": _INT, "uint": _INT, "bool": _BOOL}
"""Kind of dtype -> name of the scalar function -> text. `where` and `to` are written by the generator itself."""

WITH_NUMBERS = frozenset(("add", "sub", "mul", "div", *_COMPARE))
"""Functions of floats whose text takes one value beside lanes: C++ spreads it."""

OF_NUMBER: Mapping[str, str] = {"min": "{a} < {b} ? {a} : {b}", "max": "{a} > {b} ? {a} : {b}"}
"""Text for lanes where {a} is a number of the program, which is no NaN: one instruction."""

SLEEF: Mapping[str, str] = {
    "exp": "exp{}_u10", "exp2": "exp2{}_u10", "expm1": "expm1{}_u10", "log": "log{}_u10", "log2": "log2{}_u10",
    "log10": "log10{}_u10", "log1p": "log1p{}_u10", "sin": "sin{}_u10", "cos": "cos{}_u10", "tan": "tan{}_u10",
    "asin": "asin{}_u10", "acos": "acos{}_u10", "atan": "atan{}_u10", "atan2": "atan2{}_u10", "sinh": "sinh{}_u10",
    "cosh": "cosh{}_u10", "tanh": "tanh{}_u10", "atanh": "atanh{}_u10", "erf": "erf{}_u10", "erfc": "erfc{}_u15",
    "lgamma": "lgamma{}_u10", "pow": "pow{}_u10", "hypot": "hypot{}_u05", "nextafter": "nextafter{}",
}  # fmt: skip
"""Scalar function -> SLEEF's vector function, {} standing for type and lanes (f16, d8...).

asinh and acosh are left out: SLEEF's overflow for large f32.
"""

COMBINE: Mapping[str, str] = {
    "sum": "add", "prod": "mul", "logsumexp": "logaddexp", "max": "max", "min": "min", "any": "or", "all": "and",
}  # fmt: skip
"""Reduction -> the scalar function that combines two partial results."""

HELPERS: Mapping[str, str] = {
    "divide_int": """\
template <class T> static inline T fb_truncdiv(T a, T b) {
  return b == 0 ? (T)0 : b == (T)-1 && (T)-1 < (T)0 ? (T)(-a) : (T)(a / b);
}
template <class T> static inline T fb_fmod(T a, T b) {
  return b == 0 || (b == (T)-1 && (T)-1 < (T)0) ? (T)0 : (T)(a % b);
}
template <class T> static inline T fb_mod(T a, T b) {
  T r = fb_fmod(a, b);
  return r != 0 && ((r < 0) != (b < 0)) ? (T)(r + b) : r;
}
template <class T> static inline T fb_floordiv(T a, T b) {
  T q = fb_truncdiv(a, b);
  return b != 0 && fb_fmod(a, b) != 0 && ((a < 0) != (b < 0)) ? (T)(q - 1) : q;
}
""",
    "logaddexp": """\
static inline float fb_logaddexp(float a, float b) {
  float low = a < b || a != a ? a : b, high = a < b || a != a ? b : a;
  return low == high && __builtin_isinf(low) ? low : high + __builtin_log1pf(__builtin_expf(low - high));
}
static inline double fb_logaddexp(double a, double b) {
  double low = a < b || a != a ? a : b, high = a < b || a != a ? b : a;
  return low == high && __builtin_isinf(low) ? low : high + __builtin_log1p(__builtin_exp(low - high));
}
""",
    "mod_float": """\
static inline float fb_mod(float a, float b) {
  float r = __builtin_fmodf(a, b);
  return r != 0 && ((b < 0) != (r < 0)) ? r + b : r;
}
static inline double fb_mod(double a, double b) {
  double r = __builtin_fmod(a, b);
  return r != 0 && ((b < 0) != (r < 0)) ? r + b : r;
}
""",
    "floordiv_float": """\
static inline float fb_floordiv(float a, float b) {
  if (b == 0) return a / b;
  float r = __builtin_fmodf(a, b), q = (a - r) / b;
  if (r != 0 && ((b < 0) != (r < 0))) q -= 1;
  if (q == 0) return __builtin_copysignf(0, a / b);
  float whole = __builtin_floorf(q);
  return q - whole > 0.5f ? whole + 1 : whole;
}
static inline double fb_floordiv(double a, double b) {
  if (b == 0) return a / b;
  double r = __builtin_fmod(a, b), q = (a - r) / b;
  if (r != 0 && ((b < 0) != (r < 0))) q -= 1;
  if (q == 0) return __builtin_copysign(0, a / b);
  double whole = __builtin_floor(q);
  return q - whole > 0.5 ? whole + 1 : whole;
}
""",
}
"""Functions that a unit defines when its kernels use them."""
