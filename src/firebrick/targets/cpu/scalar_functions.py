"""C++ text of scalar functions: one row a function and kind of dtype, for one value and for a vector of lanes.

Placeholders: {a} {b} {c} arguments, {t} type of the arguments (scalar or vector), {i} the signed integer type of the
same width and lanes, {f} "f" for f32 and "" for f64, {bits} width, {low} the least number of the integer type.
Vector rows see b8 as lanes of 0 and -1; comparisons give lanes of 0 and -1 in the width of their arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

from firebrick.targets.base import FunctionText


def _both(text: str) -> FunctionText:
    return FunctionText(text, text)


def _calls(names: str, arguments: str = "{a}") -> dict[str, FunctionText]:
    return {name: FunctionText(f"__builtin_{name}{{f}}({arguments})") for name in names.split()}


def _signs(signs: Mapping[str, str]) -> dict[str, FunctionText]:
    return {name: _both(f"{{a}} {sign} {{b}}") for name, sign in signs.items()}


_COMPARE: Mapping[str, str] = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_ARITHMETIC: Mapping[str, str] = {"add": "+", "sub": "-", "mul": "*"}

_FLOAT: dict[str, FunctionText] = {
    **_signs({**_ARITHMETIC, "div": "/", **_COMPARE}),
    **_calls("floor ceil trunc sqrt lgamma exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh"),
    **_calls("tanh asinh acosh atanh erf erfc"),
    **_calls("fmod nextafter hypot pow atan2", "{a}, {b}"),
    "round": FunctionText("__builtin_rint{f}({a})"),
    "floordiv": FunctionText("fb_floordiv({a}, {b})", helper="floordiv_float"),
    "truncdiv": FunctionText("__builtin_trunc{f}({a} / {b})"),
    "mod": FunctionText("fb_mod({a}, {b})", helper="mod_float"),
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
    "rsqrt": FunctionText("1 / __builtin_sqrt{f}({a})"),
    "logaddexp": FunctionText("fb_logaddexp({a}, {b})", helper="logaddexp"),
    "sigmoid": FunctionText("1 / (1 + __builtin_exp{f}(-{a}))"),
    "isnan": _both("{a} != {a}"),
    "isinf": FunctionText(
        "__builtin_fabs{f}({a}) == __builtin_inf{f}()", "({t})(({i}){a} & ~{low}) == ({t}){{}} + __builtin_inf{f}()"
    ),
    "signbit": FunctionText("(bool)__builtin_signbit({a})", "({i}){a} < 0"),
}

_INT: dict[str, FunctionText] = {
    **_signs({**_ARITHMETIC, "bitand": "&", "bitor": "|", "bitxor": "^", **_COMPARE}),
    **{n: FunctionText(f"fb_{n}({{a}}, {{b}})", helper="divide_int") for n in ("floordiv", "truncdiv", "mod", "fmod")},
    "neg": _both("-{a}"),
    "abs": _both("{a} < 0 ? -{a} : {a}"),
    "sign": FunctionText("({t})(({a} > 0) - ({a} < 0))", "({t})({a} < 0) - ({t})({a} > 0)"),
    **{name: _both(f"{{a}} {sign} {{b}} ? {{a}} : {{b}}") for name, sign in (("min", "<"), ("max", ">"))},
    "bitnot": _both("~{a}"),
    "shl": FunctionText("({b} < 0 || {b} >= {bits}) ? ({t})0 : ({t})({a} << {b})"),
    "shr": FunctionText(
        "({b} < 0 || {b} >= {bits}) ? ({t})({a} < 0 ? -1 : 0) : ({t})({a} >> {b})",
        "({b} < 0 | {b} >= {bits}) ? {a} >> ({bits} - 1) : {a} >> {b}",
    ),
}

_BOOL: dict[str, FunctionText] = {
    **_signs({"min": "&", "max": "|", "and": "&", "or": "|", "xor": "^", "eq": "==", "ne": "!="}),
    "not": FunctionText("!{a}", "~{a}"),
    # As numbers, lanes of -1 are true, so the order is turned round.
    **{n: FunctionText(f"{{a}} {_COMPARE[n]} {{b}}", f"{{b}} {_COMPARE[n]} {{a}}") for n in ("lt", "le", "gt", "ge")},
}

ROWS: Mapping[str, Mapping[str, FunctionText]] = {"float": _FLOAT, "int": _INT, "uint": _INT, "bool": _BOOL}
"""Kind of dtype -> name of the scalar function -> text. `where` and `to` are written by the generator itself."""

WITH_NUMBERS = frozenset(("add", "sub", "mul", "div", *_COMPARE))
"""Functions of floats whose text takes one value beside lanes: C++ spreads it."""

OF_NUMBER: Mapping[str, str] = {"min": "{a} < {b} ? {a} : {b}", "max": "{a} > {b} ? {a} : {b}"}
"""Text for lanes where {a} is a number of the program, which is no NaN: one instruction."""

_LIBRARY = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh atanh erf lgamma pow".split()
)
SLEEF: Mapping[str, str] = {name: f"{name}{{}}_u10" for name in _LIBRARY}
SLEEF = {**SLEEF, "erfc": "erfc{}_u15", "hypot": "hypot{}_u05", "nextafter": "nextafter{}"}
"""Scalar function -> SLEEF's vector function, {} standing for type and lanes (f16, d8...).

asinh and acosh are left out: SLEEF's overflow for large f32.
"""

COMBINE: Mapping[str, str] = {
    "sum": "add", "prod": "mul", "logsumexp": "logaddexp", "max": "max", "min": "min", "any": "or", "all": "and",
}  # fmt: skip
"""Reduction -> the scalar function that combines two partial results."""

_FLOATS = (("float", "f("), ("double", "("))
_OF_FLOATS = {
    "logaddexp": """\
static inline FLOAT fb_logaddexp(FLOAT a, FLOAT b) {
  FLOAT low = a < b || a != a ? a : b, high = a < b || a != a ? b : a;
  return low == high && __builtin_isinf(low) ? low : high + __builtin_log1p_F(__builtin_exp_F(low - high));
}
""",
    "mod_float": """\
static inline FLOAT fb_mod(FLOAT a, FLOAT b) {
  FLOAT r = __builtin_fmod_F(a, b);
  return r != 0 && ((b < 0) != (r < 0)) ? r + b : r;
}
""",
    "floordiv_float": """\
static inline FLOAT fb_floordiv(FLOAT a, FLOAT b) {
  if (b == 0) return a / b;
  FLOAT r = __builtin_fmod_F(a, b), q = (a - r) / b;
  if (r != 0 && ((b < 0) != (r < 0))) q -= 1;
  if (q == 0) return __builtin_copysign_F(0, a / b);
  FLOAT whole = __builtin_floor_F(q);
  return q - whole > 0.5 ? whole + 1 : whole;
}
""",
}
"""Those of two types: FLOAT and the letter of its functions."""

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
    **{
        name: "".join(text.replace("FLOAT", t).replace("_F(", s) for t, s in _FLOATS)
        for name, text in _OF_FLOATS.items()
    },
}
"""Functions that a unit defines when its kernels use them."""
