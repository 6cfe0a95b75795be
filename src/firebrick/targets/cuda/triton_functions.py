"""Scalar functions and folds in Triton: one row a name of `loops.ops`, and the helpers that rows call.

Functions with a name in CUDA's math library are called there, as eager PyTorch's kernels do, so results have its
accuracy. Division and square roots are rounded as IEEE says: Triton's own `/` and `sqrt` are not, and a quotient that
is rounded to a whole number next would differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from firebrick.ir.loops.dtypes import DTYPES

TYPES: Mapping[str, str] = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16", "i64": "tl.int64",
    "i32": "tl.int32", "i16": "tl.int16", "i8": "tl.int8", "u8": "tl.uint8", "b8": "tl.int1",
}  # fmt: skip
"""Triton's names of types."""


def _library(*names: str, of: str = "{a}") -> dict[str, str]:
    return {n: f"libdevice.{n}({of})" for n in names}


_BOTH = {name: f"{{a}} {sign} {{b}}" for name, sign in zip(("add", "sub", "mul"), "+-*", strict=True)}
_BOTH |= {"abs": "tl.abs({a})", "sign": "sign({a})"}

_FLOAT: Mapping[str, str] = {
    **_BOTH,
    "div": "tl.div_rn({a}, {b})",
    "floordiv": "floor_quotient({a}, {b})",
    "truncdiv": "libdevice.trunc(tl.div_rn({a}, {b}))",
    "mod": "modulus({a}, {b})",
    "neg": "{a} * -1.0",  # Triton takes the minus for a subtraction from 0, which makes no -0.0
    "min": "tl.minimum({a}, {b}, tl.PropagateNan.ALL)",
    "max": "tl.maximum({a}, {b}, tl.PropagateNan.ALL)",
    **{n: f"{n}({{a}}, {{b}})" for n in ("fmin", "fmax", "logaddexp")},
    **{n: f"tl.{n}({{a}})" for n in ("floor", "ceil")},
    "round": "libdevice.rint({a})",
    "sqrt": "tl.sqrt_rn({a})",
    "sigmoid": "tl.div_rn(1.0, 1.0 + libdevice.exp(-{a}))",
    "isnan": "{a} != {a}",
    "isinf": 'tl.abs({a}) == float("inf")',
    "signbit": "libdevice.signbit({a}) != 0",
    **_library("rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "trunc"),
    **_library("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    **_library("erf", "erfc", "lgamma"),
    **_library("fmod", "copysign", "nextafter", "hypot", "pow", "atan2", of="{a}, {b}"),
}

_DOUBLE: Mapping[str, str] = {
    "div": "{a} / {b}",
    "truncdiv": "libdevice.trunc({a} / {b})",
    "sqrt": "libdevice.sqrt({a})",
    "sigmoid": "1.0 / (1.0 + libdevice.exp(-{a}))",
    "floordiv": "floor_quotient_f64({a}, {b})",
}

_INTEGER: Mapping[str, str] = {
    **_BOTH,
    **{n: f"whole_{n}({{a}}, {{b}})" for n in ("floordiv", "truncdiv", "mod", "fmod")},
    "neg": "-{a}",
    "min": "tl.minimum({a}, {b})",
    "max": "tl.maximum({a}, {b})",
    **{f"bit{n}": f"{{a}} {sign} {{b}}" for n, sign in zip(("and", "or", "xor"), "&|^", strict=True)},
    "bitnot": "~{a}",
    "shl": "tl.where(({b} >= 0) & ({b} < {bits}), {a} << {b}, 0)",
    "shr": "{a} >> tl.where(({b} >= 0) & ({b} < {bits}), {b}, {last})",
}

_UNSIGNED: Mapping[str, str] = {
    **dict.fromkeys(("floordiv", "truncdiv"), "tl.where({b} == 0, 0, {a} // tl.where({b} == 0, 1, {b}))"),
    **dict.fromkeys(("mod", "fmod"), "tl.where({b} == 0, 0, {a} % tl.where({b} == 0, 1, {b}))"),
    "abs": "{a}",
    "sign": "tl.where({a} == 0, {a}, 1)",
    "neg": "0 - {a}",
    "bitnot": "{a} ^ 255",  # u8 is the only one
    "shl": "tl.where({b} < {bits}, {a} << {b}, 0)",
    "shr": "tl.where({b} < {bits}, {a} >> {b}, 0)",
}

_LOGIC: Mapping[str, str] = {
    "and": "{a} & {b}", "or": "{a} | {b}", "xor": "{a} ^ {b}", "not": "~{a}", "min": "{a} & {b}", "max": "{a} | {b}",
    "lt": "~{a} & {b}", "le": "~{a} | {b}", "gt": "{a} & ~{b}", "ge": "{a} | ~{b}", "eq": "~({a} ^ {b})",
    "ne": "{a} ^ {b}",
}  # fmt: skip

_COMMON: Mapping[str, str] = {
    "lt": "{a} < {b}", "le": "{a} <= {b}", "gt": "{a} > {b}", "ge": "{a} >= {b}", "eq": "{a} == {b}",
    "ne": "{a} != {b}", "where": "tl.where({a}, {b}, {c})",
}  # fmt: skip

FUNCTIONS: Mapping[str, Mapping[str, str]] = {
    "f32": {**_COMMON, **_FLOAT},
    "f64": {**_COMMON, **_FLOAT, **_DOUBLE},
    "int": {**_COMMON, **_INTEGER},
    "uint": {**_COMMON, **_INTEGER, **_UNSIGNED},
    "bool": {**_COMMON, **_LOGIC},
}
"""Kind of argument -> scalar function -> text of {a}, {b}, {c}; {bits} is the width of the type, {last} less one."""


@dataclass(frozen=True, slots=True)
class FoldText:
    """A reduction: how two values {a} and {b} are folded, and the name of the helper that does it, "" for a sum."""

    two: str
    helper: str


_PLAIN = ("sum", "+"), ("prod", "*"), ("any", "|"), ("all", "&")
_HELPED = {"max": "greatest_of", "min": "least_of", "logsumexp": "logaddexp"}
_HELPED |= {"argmax": "first_greatest", "argmin": "first_least"}
FOLDS: Mapping[str, FoldText] = {
    **{n: FoldText(f"{{a}} {s} {{b}}", f"{n}_of") for n, s in _PLAIN},
    **{n: FoldText(f"{h}({{a}}, {{b}})", h) for n, h in _HELPED.items()},
}
"""Reduction -> its texts; those of positions take a value and its place for each side."""

_FIRST = """def {name}(a, i, b, j):
    a_wins = (a {before} b) | ((a != a) & (b == b))
    tied = (a == b) | ((a != a) & (b != b))
    keep = a_wins | (tied & (i < j))
    return tl.where(keep, a, b), tl.where(keep, i, j)"""

HELPERS: Mapping[str, str] = {
    **{f"{n}_of": f"def {n}_of(a, b):\n    return a {s} b" for n, s in _PLAIN},
    "greatest_of": "def greatest_of(a, b):\n    return tl.maximum(a, b, tl.PropagateNan.ALL)",
    "least_of": "def least_of(a, b):\n    return tl.minimum(a, b, tl.PropagateNan.ALL)",
    "first_greatest": _FIRST.format(name="first_greatest", before=">"),
    "first_least": _FIRST.format(name="first_least", before="<"),
    "logaddexp": """def logaddexp(a, b):
    high = tl.maximum(a, b, tl.PropagateNan.ALL)
    apart = tl.abs(a - b)
    # Equal infinities have no difference.
    return tl.where(a == b, a + 0.6931471805599453, high + libdevice.log1p(libdevice.exp(-apart)))""",
    "sign": "def sign(a):\n    return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)",
    "fmin": "def fmin(a, b):\n    return tl.where(a != a, b, tl.where(b != b, a, tl.where(a < b, a, b)))",
    "fmax": "def fmax(a, b):\n    return tl.where(a != a, b, tl.where(b != b, a, tl.where(a > b, a, b)))",
    "modulus": """def modulus(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)""",
    "whole_below": """def whole_below(a, b, quotient, rest):
    # As eager: the quotient of what is left without the remainder, which is whole but for rounding.
    lower = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1.0, quotient)
    floor = tl.floor(lower)
    floor = tl.where(lower - floor > 0.5, floor + 1.0, floor)
    return tl.where(lower != 0, floor, 0.0 * (a / b))""",
    "floor_quotient": """def floor_quotient(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where(b == 0, tl.div_rn(a, b), whole_below(a, b, tl.div_rn(a - rest, b), rest))""",
    "floor_quotient_f64": """def floor_quotient_f64(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where(b == 0, a / b, whole_below(a, b, (a - rest) / b, rest))""",
    **{
        f"whole_{n}": f"def whole_{n}(a, b):\n    return tl.where(b == 0, 0, a {sign} tl.where(b == 0, 1, b))"
        for n, sign in (("truncdiv", "//"), ("fmod", "%"))
    },
    "whole_floordiv": """def whole_floordiv(a, b):
    by = tl.where(b == 0, 1, b)
    down = (a % by != 0) & ((a < 0) != (by < 0))
    return tl.where(b == 0, 0, a // by - down.to(a.dtype))""",
    "whole_mod": """def whole_mod(a, b):
    by = tl.where(b == 0, 1, b)
    rest = a % by
    return tl.where(b == 0, 0, tl.where((rest != 0) & ((rest < 0) != (by < 0)), rest + by, rest))""",
    "eager_words": """def eager_words(element, seed, offset, within, together, threads):
    # The four words of an element's draw, and which of them is its own. Replays of a graph find the state in memory.
    # What stands for it else is the address itself: Triton may set the address's register to it before the load.
    seed = tl.load(tl.cast(seed, tl.int64).to(tl.pointer_type(tl.int64)), within >= 0, seed)
    offset = tl.load(tl.cast(offset, tl.int64).to(tl.pointer_type(tl.int64)), within >= 0, offset)
    offset += tl.maximum(within, 0)
    step, width = tl.cast(threads, element.dtype), tl.cast(together, element.dtype)
    part = element // width
    turn, thread = part // step, part % step
    word = element % 4
    if together == 1:
        word = turn % 4
        turn = turn // 4
    elif together == 2:
        word = element % 2
    else:
        turn = turn * (width // 4) + element % width // 4
    start = offset // 4
    low = turn.to(tl.uint32) + start.to(tl.uint32)
    high = (start >> 32).to(tl.uint32) + (low < start.to(tl.uint32)).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, thread.to(tl.uint32), tl.zeros_like(low))
    return a, b, c, d, word""",
    "draw_one": """def draw_one(element, seed, offset, within, together, threads):
    a, b, c, d, word = eager_words(element, seed, offset, within, together, threads)
    return tl.where(word < 2, tl.where(word == 0, a, b), tl.where(word == 2, c, d))""",
    "draw_four": """def draw_four(first, seed, offset, within, together, threads):
    # Those of four elements that lie together, as two dimensions.
    a, b, c, d, word = eager_words(first, seed, offset, within, together, threads)
    if together < 4:
        a = draw_one(first, seed, offset, within, together, threads)
        b = draw_one(first + 1, seed, offset, within, together, threads)
        c = draw_one(first + 2, seed, offset, within, together, threads)
        d = draw_one(first + 3, seed, offset, within, together, threads)
    return tl.join(tl.join(a, c), tl.join(b, d))""",
    "exp_of": "def exp_of(a, near: tl.constexpr):\n    return tl.exp(a) if near else libdevice.exp(a)",
    "online_sum": """def online_sum(best, total, values, axis: tl.constexpr, near: tl.constexpr):
    high = tl.maximum(best, tl.reduce(values, axis, greatest_of), tl.PropagateNan.ALL)
    # Of nothing but minus infinity the differences are 0.
    shift = tl.where(high == -float("inf"), 0.0, high)
    below = exp_of(values - tl.expand_dims(shift, axis), near)
    return high, total * exp_of(best - shift, near) + tl.sum(below, axis)""",
}
"""Functions that kernels call: name -> text."""


_CALLED = re.compile(r"(?<![\w.])\w+(?=[(),])")
"""What a text calls, or gives to a call."""


def helpers_of(text: str) -> list[str]:
    """The helpers that a text calls, and those that they call, each before its callers."""
    names: dict[str, None] = {}

    def need(body: str, own: str) -> None:
        called = {*_CALLED.findall(body)} - {own}
        for name in [h for h in HELPERS if h in called]:
            if name not in names:
                need(HELPERS[name], name)
                names[name] = None

    need(text, "")
    return [HELPERS[name] for name in names]


def cast_text(text: str, old: str, new: str) -> str:
    """A value converted as Tensor.to does."""
    source, target = DTYPES[old], DTYPES[new]
    if new == "b8":
        return f"{text} != 0"
    if source.is_float and target.is_int and new not in ("i64", "i32"):
        # What the narrow type can't hold wraps around, as in eager kernels.
        return f"{text}.to({'tl.int64' if new == 'u8' else 'tl.int32'}).to({TYPES[new]})"
    if new in ("bf16", "f16") and (old == "f64" or not source.is_float):
        return f"{text}.to(tl.float32).to({TYPES[new]})"
    return f"{text}.to({TYPES[new]})"
