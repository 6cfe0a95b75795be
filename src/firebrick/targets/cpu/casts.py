"""C++ text of conversions between dtypes, with bf16 and f16 kept as 16-bit words."""

from __future__ import annotations

from firebrick.ir.loops.dtypes import DTYPES
from firebrick.targets.cpu.cpp_types import SCALAR
from firebrick.targets.cpu.unit_writer import Text, Unit, Writer
from firebrick.targets.cpu.vector_math import AVX512, HALF_HARDWARE

_HALVES = ("bf16", "f16")


def cast(out: Writer, text: Text, old: str, new: str) -> Text:
    """A value of dtype `old` as one of dtype `new`."""
    if old == new:
        return text
    if old in _HALVES:
        text = out.name("f32", half(out, f"fb_from_{old}", text), text.varying)
        old = "f32"
        if new == "f32":
            return text
    if new in _HALVES:
        if old != "f32":
            text = out.name("f32", _convert(out, old, "f32", text), text.varying)
        return out.name(new, half(out, f"fb_to_{new}", text), text.varying)
    return out.name(new, _convert(out, old, new, text), text.varying)


def _convert(out: Writer, old: str, new: str, text: Text) -> str:
    kind = DTYPES[new].kind
    if not text.varying:
        if kind == "bool":
            return f"{text.code} != 0"
        if DTYPES[old].is_float and DTYPES[new].is_int and DTYPES[new].nbytes < 4:
            return f"({SCALAR[new]})(int32_t){text.code}"
        return f"({SCALAR[new]}){text.code}"
    target = out.type_of(new, True)
    if kind == "bool":
        test = f"{text.code} != 0"
        return test if DTYPES[old].nbytes == 4 else f"__builtin_convertvector({test}, {target})"
    if old == "b8":
        return f"__builtin_convertvector({text.code} & 1, {target})"
    narrow = [d for d in (old, new) if DTYPES[d].is_int and DTYPES[d].nbytes < 4]
    if narrow and (DTYPES[old].is_float or DTYPES[new].is_float):  # without the middle GCC takes lanes one by one
        return f"__builtin_convertvector(__builtin_convertvector({text.code}, {out.type_of('i32', True)}), {target})"
    return f"__builtin_convertvector({text.code}, {target})"


def half(out: Writer, name: str, text: Text) -> str:
    """A conversion from or to a 16-bit floating-point type."""
    unit = out.unit
    if not text.varying:
        unit.helpers[name] = _HALF[name]
        return f"{name}({text.code})"
    assert out.lanes is not None
    return f"{lanes_of_halves(unit, name, out.lanes.width)}({text.code})"


def lanes_of_halves(unit: Unit, name: str, width: int) -> str:
    """Name of the conversion of so many lanes."""
    rows = HALF_HARDWARE if width in (8, 16) and unit.target.simd in ("avx2", *AVX512) else _HALF
    body = rows.get(f"{name}x") or _HALF[f"{name}x"]
    f, u, s = (unit.vector(lane, width) for lane in ("f32", "u32", "u16"))
    unit.helpers[f"{name}x{width}"] = body.format(w=width, f=f, u=u, s=s)
    return f"{name}x{width}"


_HALF = {
    "fb_from_bf16": """\
static inline float fb_from_bf16(uint16_t x) {
  uint32_t n = (uint32_t)x << 16;
  float r;
  __builtin_memcpy(&r, &n, 4);
  return r;
}
""",
    "fb_to_bf16": """\
static inline uint16_t fb_to_bf16(float x) {
  uint32_t n;
  __builtin_memcpy(&n, &x, 4);
  return x != x ? 0x7fc0 : (uint16_t)((n + 0x7fff + (n >> 16 & 1)) >> 16);
}
""",
    "fb_from_bf16x": """\
static inline {f} fb_from_bf16x{w}({s} x) {{ return ({f})(__builtin_convertvector(x, {u}) << 16); }}
""",
    "fb_to_bf16x": """\
static inline {s} fb_to_bf16x{w}({f} x) {{
  const {u} n = ({u})x, r = (n + 0x7fff + (n >> 16 & 1)) >> 16;
  return __builtin_convertvector(x != x ? {u}_of(0x7fc0) : r, {s});
}}
""",
    "fb_from_f16": """\
static inline float fb_from_f16(uint16_t x) {
  const uint32_t sign = (uint32_t)(x & 0x8000) << 16, bits = (uint32_t)(x & 0x7fff) << 13;
  uint32_t n = bits + (112u << 23);
  if (bits >= 31u << 23) n = bits + (224u << 23);
  float r;
  if (bits < 1u << 23) { r = (float)(x & 0x7fff) * 0x1p-24f; __builtin_memcpy(&n, &r, 4); }
  n |= sign;
  __builtin_memcpy(&r, &n, 4);
  return r;
}
""",
    "fb_to_f16": """\
static inline uint16_t fb_to_f16(float x) {
  uint32_t n;
  __builtin_memcpy(&n, &x, 4);
  const uint32_t sign = n >> 16 & 0x8000;
  n &= 0x7fffffff;
  if (n > 0x7f800000) return sign | 0x7e00;
  if (n >= 0x47800000) return sign | 0x7c00;
  if (n < 0x38800000) {
    float r;
    __builtin_memcpy(&r, &n, 4);
    r += 0.5f;
    __builtin_memcpy(&n, &r, 4);
    return sign | (uint16_t)(n - 0x3f000000);
  }
  return sign | (uint16_t)((n - (112u << 23) + 0xfff + (n >> 13 & 1)) >> 13);
}
""",
    "fb_from_f16x": """\
static inline {f} fb_from_f16x{w}({s} h) {{
  const {u} x = __builtin_convertvector(h, {u}), bits = (x & 0x7fff) << 13;
  const {u} normal = bits + (bits >= 31u << 23 ? {u}_of(224u << 23) : {u}_of(112u << 23));
  const {u} small = ({u})(__builtin_convertvector(x & 0x7fff, {f}) * 0x1p-24f);
  return ({f})((bits < 1u << 23 ? small : normal) | (x & 0x8000) << 16);
}}
""",
    "fb_to_f16x": """\
static inline {s} fb_to_f16x{w}({f} x) {{
  const {u} all = ({u})x, sign = all >> 16 & 0x8000, n = all & 0x7fffffff;
  const {u} normal = (n - (112u << 23) + 0xfff + (n >> 13 & 1)) >> 13;
  const {u} small = ({u})(({f})n + 0.5f) - 0x3f000000;
  const {u} finite = n < 0x38800000 ? small : normal;
  const {u} large = n > 0x7f800000 ? {u}_of(0x7e00) : {u}_of(0x7c00);
  return __builtin_convertvector((n >= 0x47800000 ? large : finite) | sign, {s});
}}
""",
}
"""Conversions of 16-bit floating-point types, rounded to nearest even, without instructions of one machine."""
