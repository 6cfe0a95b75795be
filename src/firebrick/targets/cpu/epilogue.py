"""C++ text of what is done to sums while they are in cache: scale, bias, another tensor added, an activation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

from firebrick.targets.cpu.cpp_types import constant_text
from firebrick.targets.cpu.unit_writer import Unit

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
    const float* other, int64_t pitch, int64_t rows, int64_t n) {{
  for (int64_t j = 0; j < n; j += {w}) {{
    const int64_t m = n - j < {w} ? n - j : {w};
    const {v} factor = scale ? {v}_load(scale + j, m) : {v}_of(1.0f);
    const {v} term = bias ? {v}_load(bias + j, m) : {v}_of(-0.0f);
    if (m == {w})
      for (int64_t r = 0; r < rows; r++) {{
        {v} y = *(const {v}u*)(c + r * ldc + j) * factor + term;
        if (other) y += *(const {v}u*)(other + r * pitch + j);
        *({v}u*)(c + r * ldc + j) = {function};
      }}
    else
      for (int64_t r = 0; r < rows; r++) {{
        {v} y = {v}_load(c + r * ldc + j, m) * factor + term;
        if (other) y += {v}_load(other + r * pitch + j, m);
        {v}_store(c + r * ldc + j, {function}, m);
      }}
  }}
}}
"""
"""For all strides: kernels of a unit share it. Times 1 and plus -0 change no bit of a number."""


def activation(unit: Unit, lanes: int, attr: str, scalars: tuple[float, ...]) -> str:
    """The text of an activation of a vector y."""
    v = unit.vector("f32", lanes)
    return ACTIVATIONS[attr](lambda f: unit.inline(f, lanes), scalars).replace("{zero}", f"{v}{{}}")


def finish(unit: Unit, lanes: int, attr: str, scalars: tuple[float, ...]) -> str:
    """Name of the function that finishes any number of rows and columns, of any strides."""
    v, function = unit.vector("f32", lanes), activation(unit, lanes, attr, scalars)
    name = f"fb_finish_{attr}_{hashlib.blake2s(function.encode(), digest_size=3).hexdigest()}_{v}"
    unit.helpers.setdefault(name, _FINISH.format(name=name, v=v, w=lanes, function=function))
    return name


def bounds(attr: str, scalars: tuple[float, ...]) -> tuple[str, ...] | None:
    """Between which numbers an activation puts a result that it leaves as it is otherwise; None if it is another."""
    ends = {"none": (), "relu": (0.0, math.inf), "hardtanh": scalars}.get(attr)
    return None if ends is None else tuple(constant_text(n, "f32") for n in ends)
