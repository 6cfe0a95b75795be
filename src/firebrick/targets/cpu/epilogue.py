"""C++ text of what is done to sums while they are in cache: scale, bias, another tensor added, an activation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

from firebrick.targets.cpu.casts import lanes_of_halves
from firebrick.targets.cpu.cpp_types import constant_text
from firebrick.targets.cpu.tiles import reading
from firebrick.targets.cpu.unit_writer import Unit
from firebrick.targets.cpu.vector_math import BF16

ACTIVATIONS: Mapping[str, Callable[[Callable[[str], str], tuple[float, ...]], str]] = {
    "none": lambda f, _: "y",
    "relu": lambda f, _: "{zero} > y ? {zero} : y",
    "hardtanh": lambda f, s: f"y < {s[0]!r}f ? {{zero}} + {s[0]!r}f : y > {s[1]!r}f ? {{zero}} + {s[1]!r}f : y",
    "gelu": lambda f, _: f"y * 0.5f * {f('erf1p')}(y * 0.70710678118654752f)",
    # y / 2 * (1 + tanh(u)) without its cancellation: y / (1 + exp(-2u))
    "gelu_tanh": lambda f, _: f"y / (1.0f + {f('exp')}(-1.59576912160573071f * (y + 0.044715f * y * y * y)))",
    "tanh": lambda f, _: f"{f('tanh')}(y)",
    "sigmoid": lambda f, _: f"1.0f / (1.0f + {f('exp')}(-y))",
    "swish": lambda f, _: f"y / (1.0f + {f('exp')}(-y))",
    "hardswish": lambda f, _: "y * (y < -3.0f ? {zero} : y > 3.0f ? {zero} + 6.0f : y + 3.0f) * 0.16666666666666667f",
}
"""Activation -> the text of its value for a vector y, given the unit's names of functions, and its numbers."""

_FINISH = """\
static __attribute__((noinline)) void {name}(float* c, int64_t ldc, const float* scale, const float* bias,
    const {t}* other, int64_t pitch, int64_t rows, int64_t n{out}) {{
  for (int64_t j = 0; j < n; j += {w}) {{
    const int64_t m = n - j < {w} ? n - j : {w};
    const {v} factor = scale ? {v}_load(scale + j, m) : {v}_of(1.0f);
    const {v} term = bias ? {v}_load(bias + j, m) : {v}_of(-0.0f);
    if (m == {w})
      for (int64_t r = 0; r < rows; r++) {{
        {v} y = *(const {v}u*)(c + r * ldc + j) * factor + term;
        if (other) y += fb_read(other + r * pitch + j);
        fb_write({to} + j, {function});
      }}
    else
      for (int64_t r = 0; r < rows; r++) {{
        {v} y = {v}_load(c + r * ldc + j, m) * factor + term;
        if (other) y += fb_read(other + r * pitch + j, m);
        fb_write({to} + j, {function}, m);
      }}
  }}
}}
"""
"""For all strides: kernels of a unit share it. Times 1 and plus -0 change no bit of a number."""
_ROUNDED = """\
static inline {s} fb_rounded({v} y) {{ {s} x; asm("vcvtneps2bf16 %1, %0" : "=v"(x) : "v"(y)); return x; }}
"""
_WRITE = """\
static inline void fb_write(float* p, {v} y) {{ *({v}u*)p = y; }}
static inline void fb_write(float* p, {v} y, int64_t m) {{ {v}_store(p, y, m); }}
static inline void fb_write(uint16_t* p, {v} y) {{ *({s}u*)p = {rounded}(y); }}
static inline void fb_write(uint16_t* p, {v} y, int64_t m) {{ {s}_store(p, {rounded}(y), m); }}
"""
"""What puts a vector, or its first m lanes, where f32 or bf16 are kept."""


def activation(unit: Unit, lanes: int, attr: str, scalars: tuple[float, ...]) -> str:
    """The text of an activation of a vector y."""
    v = unit.vector("f32", lanes)
    return ACTIVATIONS[attr](lambda f: unit.inline(f, lanes), scalars).replace("{zero}", f"{v}{{}}")


def finish(unit: Unit, lanes: int, attr: str, scalars: tuple[float, ...], rounds: bool = False) -> str:
    """Name of the function that finishes any number of rows and columns, of any strides; in place, or as bfloat16."""
    v, function = unit.vector("f32", lanes), activation(unit, lanes, attr, scalars)
    digest = hashlib.blake2s(function.encode(), digest_size=3).hexdigest()
    name = f"fb_{'round' if rounds else 'finish'}_{attr}_{digest}_{v}"
    ends = ("uint16_t", "out + r * pitch", ", uint16_t* out") if rounds else ("float", "c + r * ldc", "")
    writing(unit, lanes)
    types = dict(zip(("t", "to", "out"), ends, strict=True))
    unit.helpers.setdefault(name, _FINISH.format(name=name, v=v, w=lanes, function=function, **types))
    return name


def writing(unit: Unit, lanes: int) -> None:
    """Put `fb_read` and `fb_write` into the unit."""
    reading(unit, lanes)
    v, s = (unit.vector(lane, lanes) for lane in ("f32", "u16"))
    rounded = "fb_rounded" if unit.target.simd in BF16 else lanes_of_halves(unit, "fb_to_bf16", lanes)
    unit.helpers.setdefault("fb_rounded", _ROUNDED.format(v=v, s=s) if unit.target.simd in BF16 else "")
    unit.helpers.setdefault("fb_write", _WRITE.format(v=v, s=s, rounded=rounded))


def bounds(attr: str, scalars: tuple[float, ...]) -> tuple[str, ...] | None:
    """Between which numbers an activation puts a result that it leaves as it is otherwise; None if it is another."""
    ends = {"none": (), "relu": (0.0, math.inf), "hardtanh": scalars}.get(attr)
    return None if ends is None else tuple(constant_text(n, "f32") for n in ends)
