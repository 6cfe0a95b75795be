"""Vector functions that units define themselves: faster than a library call, at most 1.4 units in the last place off.

The polynomials were fitted with Lawson iterations for the least greatest error. {v} is the vector of f32, {i} that of
i32, {s} that of u16. `numerics="eager"` does without them.
"""

from __future__ import annotations

from collections.abc import Mapping

BF16 = ("avx512_bf16", "avx512_amx")
AVX512 = ("avx512", "avx512_vnni", *BF16)
"""Levels whose vectors have 64 bytes."""

_POWER = """\
  const {v} t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
  const {v} r = x - n * 0.693145752f - n * 1.42860677e-6f;
  {v} p = r * 0.001381455804221332f + 0.008368736132979393f;
  p = p * r + 0.04166838899254799f;
  p = p * r + 0.1666652113199234f;
  p = p * r + 0.4999999403953552f;
  p = p * (r * r) + r + 1.0f;"""
_EXP = """\
static inline {v} fb_exp_{v}({v} x) {{
  x = fb_smaller_{v}({v}_of(89.0f), fb_larger_{v}({v}_of(-104.5f), x));
{power}
  {scale}
}}
"""

_PICKS = """\
// b where one of them is no number.
static inline {v} fb_larger_{v}({v} a, {v} b) {{ {larger} }}
static inline {v} fb_smaller_{v}({v} a, {v} b) {{ {smaller} }}
"""

_SCALE = """\
// 2^n in two steps, so that results below the normal numbers and near the largest come out right.
  const {i} k = ({i})t - 0x4b400000, half = k >> 1;
  return p * ({v})((half + 127) << 23) * ({v})((k - half + 127) << 23);"""
_SCALE_AVX512 = """\
{v} y;
  asm("vscalefps %2, %1, %0" : "=v"(y) : "v"(p), "v"(n));
  return y;"""

_SMALL = """\
// exp of what lies between -80 and 80.
static inline {v} fb_small_exp_{v}({v} x) {{
{power}
  return p * ({v})((({i})t << 23) + 0x3f800000);
}}
"""

_ERF = """\
static inline {v} fb_erf_{v}({v} x) {{
  const {i} sign = ({i})x & (int32_t)0x80000000;
  const {v} s = x * x, a = ({v})(({i})x ^ sign);
  {v} p = s * -0.0006090357783250511f + 0.0050119622610509396f;
  p = p * s - 0.02677890844643116f;
  p = p * s + 0.11282140761613846f;
  p = p * s - 0.3761252462863922f;
  p = p * s + 0.12837915122509003f;
  const {v} t = fb_smaller_{v}({v}_of(4.1f), a);
  {v} q = t * 2.00178492377745e-05f - 0.00042217911686748266f;
  q = q * t + 0.004112456925213337f;
  q = q * t - 0.024967707693576813f;
  q = q * t + 0.10804979503154755f;
  q = q * t + 0.6335520148277283f;
  q = q * t + 1.1294156312942505f;
  q = q * t - 0.00015450309729203582f;
  return ({v})(({i})(a < 0.9f ? p * a + a : 1.0f - fb_small_exp_{v}(-q)) | sign);
}}
"""

_TANH = """\
static inline {v} fb_tanh_{v}({v} x) {{
  const {i} sign = ({i})x & (int32_t)0x80000000;
  const {v} size = ({v})(({i})x ^ sign), a = fb_smaller_{v}({v}_of(20.0f), size), s = a * a;
  {v} p = s * -0.005895150359719992f + 0.02079596370458603f;
  p = p * s - 0.053783826529979706f;
  p = p * s + 0.13331924378871918f;
  p = p * s - 0.33333298563957214f;
  return ({v})(({i})(a < 0.6f ? p * s * a + a : 1.0f - 2.0f / (fb_small_exp_{v}(a + a) + 1.0f)) | sign);
}}
"""

_ERF1P = """\
static inline {v} fb_erf1p_{v}({v} x) {{
  const {v} a = ({v})(({i})x & 0x7fffffff), t = fb_smaller_{v}({v}_of(5.6f), a);
  {v} q = t * 2.2511819679493783e-06f - 4.2503565055085346e-05f;
  q = q * t + 0.0003087179793510586f;
  q = q * t - 0.0009418321424163878f;
  q = q * t - 0.0007469791453331709f;
  q = q * t + 0.01979171857237816f;
  q = q * t - 0.10301920026540756f;
  q = q * t - 0.6365757584571838f;
  q = q * t - 1.1283820867538452f;
  q = q * t + 2.98723250580224e-08f;
  const {v} tail = a > 5.6f ? {v}{{}} : fb_small_exp_{v}(q);
  return x < 0.0f ? tail : 2.0f - tail;
}}
"""

INLINE: Mapping[str, tuple[str, ...]] = {
    "exp": (_PICKS, _EXP), "erf": (_PICKS, _SMALL, _ERF), "tanh": (_PICKS, _SMALL, _TANH), "larger": (_PICKS,),
    "erf1p": (_PICKS, _SMALL, _ERF1P),
}  # fmt: skip
"""Function -> the texts that define it for vectors of f32, in order.

erf1p is 1 + erf(x), exact to 7e-8 and without cancellation for negative x: what GELU needs.
"""

_PICK = '{{v}} y; asm("v{}ps %2, %1, %0" : "=v"(y) : "v"(a), "v"(b)); return y;'
_STEPS_AVX512 = {"power": _POWER, "scale": _SCALE_AVX512, "larger": _PICK.format("max"), "smaller": _PICK.format("min")}
STEPS: Mapping[str, Mapping[str, str]] = dict.fromkeys(AVX512, _STEPS_AVX512)
"""SIMD level -> parts of the functions, where those are not `STEPS_ANY`: an instruction multiplies by a power of two,
and one picks the larger number, for which compilers take two with a mask."""
STEPS_ANY = {"power": _POWER, "scale": _SCALE, "larger": "return a > b ? a : b;", "smaller": "return a < b ? a : b;"}

_ROUND = {"floor": 9, "ceil": 10, "trunc": 11, "round": 12}

HARDWARE: Mapping[str, Mapping[str, str]] = {
    level: {"sqrt": "vsqrt{p} %1, %0", **{n: f"{round_}{{p}} ${k}, %1, %0" for n, k in _ROUND.items()}}
    for level, round_ in {**dict.fromkeys(AVX512, "vrndscale"), "avx2": "vround"}.items()
}
"""SIMD level -> functions that are one instruction there, {p} standing for ps and pd."""

HARDWARE_FUNCTION = """\
static inline {v} fb_{name}_{v}({v} x) {{ {v} y; asm("{text}" : "=v"(y) : "v"(x)); return y; }}
"""

HALF_HARDWARE: Mapping[str, str] = {
    "fb_from_f16x": """\
static inline {f} fb_from_f16x{w}({s} x) {{ {f} y; asm("vcvtph2ps %1, %0" : "=v"(y) : "v"(x)); return y; }}
""",
    "fb_to_f16x": """\
static inline {s} fb_to_f16x{w}({f} x) {{ {s} y; asm("vcvtps2ph $0, %1, %0" : "=v"(y) : "v"(x)); return y; }}
""",
}
"""Conversions of f16 by the instructions of AVX2 and AVX-512, for 8 and 16 lanes."""
