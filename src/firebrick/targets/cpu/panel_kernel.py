"""Products by weights that were packed ahead of time, as C++: of 8-bit integers, exact for all values, and of bfloat16.

One instruction multiplies several numbers that lie side by side and adds the products to a sum of 32 bits:

- "quads", with VNNI: four; signed bytes are raised by 128, and sums start from what lies for it in front of a panel.
- "pairs": both factors are widened to 16 bits, of which an instruction takes two. (GCC 12 widens halves of a vector.)
- "halves", with AVX512-BF16: two bfloat16. Sums are float32; bias and activation are added before they are rounded.
- "bytes" and "words", with AMX: tiles of 16 rows of either, by 16 columns.

Panels of the weight (`pack_panels`) pass by tiles of rows, which a thread widens or raises into a copy of its own. One
driver takes all shapes of a unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firebrick.errors import LoweringError
from firebrick.ir.index.expr import Expr, as_int
from firebrick.ir.loops.program import Extern, Ref
from firebrick.targets.cpu.epilogue import finish
from firebrick.targets.cpu.matmul_kernel import PLANS
from firebrick.targets.cpu.tiles import CLIP
from firebrick.targets.cpu.unit_writer import Unit

OPS = "firebrick::panel_product.out", "firebrick::panel_convolution.out"

_VECTORS = 2
"""Of a panel."""
PANEL_COLUMNS = {64: 16 * _VECTORS, 32: 8 * _VECTORS}
"""Bytes of a vector -> columns of a panel; other machines have no instruction for it."""
_ROWS = {64: 14, 32: 6}
"""Bytes of a vector -> rows of a tile whose sums, with a panel's row and a number, fill the registers."""
_PIECE, _GAP = 2048, 64
"""Bytes of a row before the next tile, so that a tile's rows stay in the first-level cache, and what keeps rows from
the same lines of it."""
_BLOCK = 16
"""Most panels that pass by before the next rows: sums of so many are held."""
_SERIAL = 1 << 19
"""Multiplications up to which one thread does all."""
_TILE_SPEED = 8
"""Products of an AMX instruction's cycle, in those of a vector instruction's."""

VNNI_LEVELS = ("avx512_vnni", "avx512_bf16", "avx512_amx")
BF16_LEVELS, VNNI, HALVES = VNNI_LEVELS[1:], 4, 2
"""SIMD levels with instructions for four bytes and two bfloat16, and these numbers; bytes without VNNI go by two."""

_TILE = """\
static __attribute__((noinline)) void fb_{kind}_tile{rows}(const {e}* a, int64_t row, const int8_t* b, int64_t steps,
    {sum}* c, int64_t ldc, bool first, const int8_t* start, const int8_t* next) {{
  {v} {zeros};
  if (start) {{
{starts}
  }}
  for (int64_t p = 0; p < steps; p++, a += {depth}, b += {bytes}, next += {bytes}) {{
    __builtin_prefetch(next, 0, 2);
    __builtin_prefetch(next + {bytes} / 2, 0, 2);
    const {h} {panel};
    {h} x;
{products}
  }}
  if (!first) {{
{sums}
  }}
{stores}
}}
"""
"""Rows by a panel: `steps` of products. Numbers of a row are `row` apart. Meanwhile what comes `next` is fetched."""

_PAIRS = """\
static inline {h} fb_widen(const int8_t* p) {{
  {h} wide;
  asm("vpmovsxbw %1, %0" : "=v"(wide) : "m"(*(const {s}u*)p));
  return wide;
}}
static inline {h} fb_widen(const uint8_t* p) {{
  {h} wide;
  asm("vpmovzxbw %1, %0" : "=v"(wide) : "m"(*(const {u}u*)p));
  return wide;
}}
static inline int16_t fb_number(int16_t x) {{ return x; }}
static inline {h} fb_pairs_panel(const int8_t* p) {{ return fb_widen(p); }}
static inline {v} fb_add({v} c, {h} a, {h} b) {{
  {v} sums;
  asm("vpmaddwd %2, %1, %0" : "=v"(sums) : "v"(a), "v"(b));
  return c + sums;
}}
"""
_QUADS = """\
static inline {u} fb_widen(const int8_t* p) {{ return *(const {u}u*)p ^ {u}_of(128); }}
static inline uint8_t fb_number(int8_t x) {{ return x ^ 128; }}
static inline {h} fb_quads_panel(const int8_t* p) {{ return *(const {h}u*)p; }}
static inline {v} fb_add({v} c, {h} a, {h} b) {{
  asm("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}}
"""
_HALVES = """\
static inline {h} fb_halves_panel(const int8_t* p) {{ return *(const {h}u*)p; }}
static inline {v} fb_add({v} c, {h} a, {h} b) {{
  asm("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}}
"""
"""How rows are copied, and what one instruction adds up."""
_COPIED = """\
static inline {vector} fb_widen(const {x}* p) {{ return *(const {vector}u*)p; }}
static inline {x} fb_number({x} x) {{ return x; }}
"""

_REPEAT = """\
static inline {h} fb_repeat(const {e}* p) {{
  int32_t several;
  __builtin_memcpy(&several, p, 4);
  return ({h})i32x{lanes}_of(several);
}}
"""
_AMX = """\
#ifndef FB_TILE_LOAD
#define FB_TILE_CONFIG(p) asm volatile("ldtilecfg (%0)" :: "r"(p) : "memory")
#define FB_TILE_RELEASE() asm volatile("tilerelease")
#define FB_TILE_ZERO(t) asm volatile("tilezero %%tmm" #t ::)
#define FB_TILE_LOAD(t, p, s) asm volatile("tileloadd (%0,%1,1), %%tmm" #t :: "r"(p), "r"(s) : "memory")
#define FB_TILE_STORE(t, p, s) asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" :: "r"(p), "r"(s) : "memory")
#define FB_TILE_DOT(op, c, a, b) asm volatile("tdp" #op " %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#endif
static void fb_tiles_of(int64_t rows) {
  __attribute__((aligned(64))) uint8_t c[64] = {1};
  for (int t = 0; t < 8; t++) c[16 + 2 * t] = 64, c[48 + t] = 16;
  c[48] = c[49] = c[52] = rows < 16 ? rows : 16;
  if (rows > 16) c[50] = c[51] = c[53] = rows - 16;
  FB_TILE_CONFIG(c);
}
"""
"""Tiles 0 to 3 are sums of 32 rows by 32 columns, 4 and 5 those rows, 6 and 7 those columns."""
_AMX_TILE = """\
template <typename X> static __attribute__((noinline)) void fb_{kind}_tile(const X* a, int64_t row,
    const int8_t* b, int64_t steps, {sum}* c, int64_t ldc, bool first, const int8_t* next, int64_t rows) {{
  const int64_t wide = 128, pitch = row * sizeof(X), to = 4 * ldc, both = rows > 16;
#define FB_DOT(c, a, b) if constexpr (sizeof(X) == 2) FB_TILE_DOT(bf16ps, c, a, b); \\
  else if constexpr (X(-1) < X(0)) FB_TILE_DOT(bssd, c, a, b); else FB_TILE_DOT(busd, c, a, b)
  if (first) {{ FB_TILE_ZERO(0); FB_TILE_ZERO(1); FB_TILE_ZERO(2); FB_TILE_ZERO(3); }}
  else {{
    FB_TILE_LOAD(0, c, to); FB_TILE_LOAD(1, c + 16, to);
    if (both) {{ FB_TILE_LOAD(2, c + 16 * ldc, to); FB_TILE_LOAD(3, c + 16 * ldc + 16, to); }}
  }}
  for (int64_t p = 0; p < steps; p++, a += 64 / sizeof(X), b += 2048, next += 2048) {{
    FB_TILE_LOAD(6, b, wide); FB_TILE_LOAD(4, a, pitch); FB_TILE_LOAD(7, b + 64, wide);
    for (int i = 0; i < 2048; i += 64) __builtin_prefetch(next + i, 0, 2);
    FB_DOT(0, 4, 6); FB_DOT(1, 4, 7);
    if (both) {{ FB_TILE_LOAD(5, a + 16 * row, pitch); FB_DOT(2, 5, 6); FB_DOT(3, 5, 7); }}
  }}
  FB_TILE_STORE(0, c, to); FB_TILE_STORE(1, c + 16, to);
  if (both) {{ FB_TILE_STORE(2, c + 16 * ldc, to); FB_TILE_STORE(3, c + 16 * ldc + 16, to); }}
#undef FB_DOT
}}
"""

_WINDOWS = """\
template <typename S> static void fb_window(const S& s, const uint16_t* x, int64_t r, int64_t k, int64_t some,
    uint16_t* to) {{
  const int64_t line = r / s.width, left = r % s.width * s.step - s.left, top = line % s.height * s.stride - s.top;
  x += line / s.height * s.image;
  for (int64_t span = k / s.length, at = k % s.length; some > 0; span++, at = 0) {{
    const int64_t n = s.length - at < some ? s.length - at : some, y = top + span / s.across * s.down;
    const int64_t from = left + span % s.across * s.right + at;
    const uint16_t* const p = x + y * s.pitch;
    const bool inside = y >= 0 && y < s.lines;
    if (!inside || from < 0 || from + n > s.line || n < {w})
      fb_clip(to, p, from, n, inside ? s.line : 0);
    else
      for (int64_t i = 0; i < n; i += {w}) {{
        const int64_t j = i + {w} <= n ? i : n - {w};
        *({h}u*)(to + j) = *(const {h}u*)(p + from + j);
      }}
    to += n, some -= n;
  }}
}}
"""
"""Some of the numbers under the window of a pixel: spans of what lies side by side, zeros beyond the image."""
_DRIVER = """\
struct fb_{kind}_shape {{
  int64_t rows, inner, outer, x_stride, out_stride;
  int64_t length, across, down, right, width, height, step, stride, left, top, image, pitch, line, lines;
  int64_t row_parts, column_parts;
}};
template <typename X, typename Y> static __attribute__((noinline)) void fb_{kind}(const fb_{kind}_shape& s, const X* x,
    const int8_t* w, const float* scale, const float* bias, const Y* other, Y* out, int64_t begin, int64_t end,
    void (*finish)(float*, int64_t, const float*, const float*, const Y*, int64_t, int64_t, int64_t, Y*)) {{
  const bool raised = {head} && X(-1) < X(0), rounds = sizeof(Y) == 2;
  const int64_t tiles = (s.rows - 1) / {most} + 1, panel = ((s.inner - 1) / {fill} * 16 + 16 + {head}) * {bytes};
  const int64_t groups = (s.outer - 1) / {columns} + 1;
  const int64_t pieces = (s.inner - 1) / {piece} + 1, piece = ((s.inner - 1) / pieces / {fill} + 1) * {fill};
  const int64_t row = (piece + {fill}) / {fill} * {fill} + {gap};
  const int64_t part = {cache} / panel, block = part < 1 ? 1 : part < {block} ? part : {block};
  {e}* const copy = ({e}*)__builtin_alloca_with_align(row * {most} * sizeof({e}), 512);
  {sum}* const held = ({sum}*)__builtin_alloca_with_align({most} * {columns} * 4 * (rounds ? block : 1), 512);
  {config}
  for (int64_t i = begin; i < end; i++) {{
  const int64_t y = i / s.column_parts, row_from = tiles * y / s.row_parts, row_to = tiles * (y + 1) / s.row_parts;
  const int64_t z = i % s.column_parts, from = groups * z / s.column_parts, to = groups * (z + 1) / s.column_parts;
  for (int64_t n0 = from; n0 < to; n0 += block)
    for (int64_t t = row_from; t < row_to; t++) {{
      const int64_t r0 = s.rows * t / tiles, count = s.rows * (t + 1) / tiles - r0;
      const int64_t n1 = to - n0 < block ? to : n0 + block, wide = (n1 - n0) * {columns};
      {configure}
      for (int64_t k = 0; k < s.inner; k += piece) {{
        const int64_t some = s.inner - k < piece ? s.inner - k : piece;
        const X* const p = x + r0 * s.x_stride + k;
        const bool in_place = !s.length && {in_place}, ends = k + some == s.inner;
        for (int64_t i = 0; i < (in_place ? 0 : count); i++) {{
          const X* const its_x = p + i * s.x_stride;
          {e}* const its = copy + i * row;
          int64_t j = 0;
          {gather}
          for (; j + {w} <= some; j += {w}) *({copied}*)(its + j) = fb_widen(its_x + j);
          for (; j < some; j++) its[j] = fb_number(its_x[j]);
          for (; j % {step}; j++) its[j] = 0;
        }}
        const {e}* const a = in_place ? (const {e}*)p : copy;
        const int64_t apart = in_place ? s.x_stride : row;
        for (int64_t n = n0; n < n1; n++) {{
          const int64_t left = s.outer - n * {columns};
          {sum}* const c = rounds ? held + (n - n0) * {columns} : ({sum}*)out + r0 * s.out_stride + n * {columns};
          const int8_t* const b = w + n * panel + ({head} + k / {depth}) * {bytes};
          const int8_t* const start = raised && k == 0 ? w + n * panel : nullptr;
          const int8_t* const next = t > row_from ? b : n + 1 < n1 ? b + panel
              : w + (k + some < s.inner ? n0 * panel + ({head} + (k + piece) / {depth}) * {bytes} : n1 * panel);
          if (rounds || left >= {columns}) {{
            {call}(a, apart, b, (some - 1) / {step} + 1, c, rounds ? wide : s.out_stride, k == 0{more});
            const int64_t at = n * {columns}, place = r0 * s.out_stride + at;
            if (rounds && ends)
              finish((float*)c, wide, scale ? scale + at : scale, bias ? bias + at : bias, other ? other + place : 0,
                     s.out_stride, count, left < {columns} ? left : {columns}, out + place);
            continue;
          }}
          {call}(a, apart, b, (some - 1) / {step} + 1, held, {columns}, true{more});
          for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < left; j++)
              c[i * s.out_stride + j] = held[i * {columns} + j] + (k ? c[i * s.out_stride + j] : 0);
        }}
      }}
    }}
  }}
  {release}
}}
"""

_KERNEL = """\
static void {name}_part(void* const* args, const int64_t* shape, int64_t begin, int64_t end) {{
  fb_{kind}<{s.type}, {result}>(*(const fb_{kind}_shape*)shape, {given}, begin, end, {finish});
}}
extern "C" void {name}(void* const* args, const int64_t* sizes) {{
  const int64_t rows = {rows}, groups = ({s.outer} - 1) / {columns} + 1, tiles = (rows - 1) / {most} + 1;
  if (rows <= 0) return;
  const bool alone = rows * {s.inner} * {s.outer} <= {serial};
  const double height = (double)rows / tiles;
  const fb_parts p = fb_grid(tiles, groups, alone ? 1 : {threads}, height * {product}, height * {word},
      {columns} * {word});
  const int64_t some = groups / ({panels} * p.columns), pieces = some < 1 ? 1 : some < {pieces} ? some : {pieces};
  const int64_t parts = p.columns * pieces < groups ? p.columns * pieces : groups;
  const fb_{kind}_shape s = {{rows, {s.inner}, {s.outer}, {s.x[1]}, {s.out_stride}, {window}, p.rows, parts}};
  fb_parallel({name}_part, args, (const int64_t*)&s, p.rows * parts, alone ? 0 : pieces);
}}
"""
"""Threads share out a grid of parts, as of other matmuls."""

_PIECES, _PANELS = 4, 8
"""Most pieces of a thread's panels, and how many panels one has at least."""


_NO_WINDOW: tuple[int, ...] = (0,) * 14


@dataclass(frozen=True, slots=True)
class PanelProduct:
    """One shape of a product, and where its factors begin. Sizes may be texts of C++.

    rows: None where each call gives their number. depth: products of an instruction. scale, bias, other: offsets, or
    None. window: where rows are what windows of images cover, the numbers of `fb_window`.
    """

    rows: int | str | None
    inner: int | str
    outer: int | str
    x: tuple[int, int | str]
    weight: int
    out_stride: int | str
    depth: int
    type: str
    bias: int | None = None
    attr: str = "none"
    scalars: tuple[float, ...] = ()
    scale: int | None = None
    other: int | None = None
    window: tuple[int | str, ...] = _NO_WINDOW

    @staticmethod
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[PanelProduct, tuple[str, ...], tuple[Expr, ...]]:
        """The shape of a call, the names of its buffers in the order of the kernel's arguments, and sizes that vary."""
        x, packed, outer, *after = call.args
        (out,) = call.outs
        if not (isinstance(x, Ref) and isinstance(packed, Ref)) or out is None:
            raise LoweringError(f"{call.op} has arguments of another kind than its kernel")
        given: Any = (*after, *(None, "none", (), None, None)[len(after) :])
        bias, attr, scalars, scale, other, *how = given
        result, count = buffers[out], None if x.shape[0].terms else as_int(x.shape[0])
        window, inner, x_stride = _NO_WINDOW, as_int(x.shape[1]), as_int(x.strides[0])
        if how:
            sides, strides, (batch, _, *size) = ([*map(as_int, n)] for n in (x.shape, x.strides, result.shape))
            count, (window, inner, x_stride) = batch * math.prod(size), window_of(sides, strides, size, *how)
        kind = {"u8": "uint8_t", "i8": "int8_t", "bf16": "uint16_t"}[buffers[x.buffer].dtype]
        added, factor, more = (as_int(t.offset) if isinstance(t, Ref) else None for t in (bias, scale, other))
        pitch = as_int(result.strides[3 if how else 0])
        sizes = (inner, outer, (as_int(x.offset), x_stride), as_int(packed.offset), pitch)
        fields: Any = (*sizes, as_int(packed.shape[3]), kind, added, attr, tuple(scalars), factor, more, window)
        operands = [r.buffer for r in (x, packed, scale, bias, other) if isinstance(r, Ref)]
        return PanelProduct(count, *fields), (*operands, out), () if count is not None else (x.shape[0],)

    @property
    def kind(self) -> str:
        """A word for the kernel's name."""
        return f"panels_{'n' if self.rows is None else self.rows}x{self.inner}x{self.outer}"

    def _kind(self, unit: Unit) -> str:
        """What its instructions multiply."""
        half, amx = self.type == "uint16_t", unit.target.simd == "avx512_amx"
        return ("bytes", "words")[half] if amx else "halves" if half else "quads" if self.depth == VNNI else "pairs"

    def shares(self, unit: Unit) -> str:
        """What kernels have in common that take the same tiles."""
        return f"panels of {self._kind(unit)}"

    def text(self, unit: Unit, name: str) -> str:
        """The kernel, less what `unit` puts before it."""
        kind, lanes, threads = self._kind(unit), unit.target.vector_bytes // 4, unit.target.threads
        amx = unit.target.simd == "avx512_amx"
        most = 32 if amx else _ROWS[unit.target.vector_bytes]
        columns, half = _VECTORS * lanes, self.type == "uint16_t"
        unit.helpers.setdefault("fb_grid", PLANS)
        if f"fb_{kind}" not in unit.helpers:
            unit.helpers[f"fb_{kind}"] = _driver(unit, kind, lanes, most, self.depth)
        result = "uint16_t" if half else "int32_t"
        given, places = [f"(const {self.type}*)args[0] + {self.x[0]}, (const int8_t*)args[1] + {self.weight}"], 2
        for offset, of in ((self.scale, "float"), (self.bias, "float"), (self.other, result)):
            given.append("nullptr" if offset is None else f"(const {of}*)args[{places}] + {offset}")
            places += offset is not None
        given.append(f"({result}*)args[{places}]")
        after = finish(unit, lanes, self.attr, self.scalars, rounds=True) if half else "nullptr"
        # A row of an instruction's products by a panel, and what an operand's row is in words, in lanes.
        product, word = columns / self.depth / (_TILE_SPEED if amx else 1), lanes * (2 if half else 1) / 4
        work: dict[str, Any] = {"most": most, "serial": _SERIAL, "threads": threads, "columns": columns}
        work |= {"pieces": _PIECES, "panels": _PANELS, "product": product, "word": word}
        names = {"name": name, "kind": kind, "result": result, "rows": "sizes[0]" if self.rows is None else self.rows}
        names |= {"given": ", ".join(given), "finish": after, "window": ", ".join(map(str, self.window))}
        return _KERNEL.format(s=self, **names, **work)


def window_of(
    x: Sequence[int], strides: Sequence[int], out: Sequence[int], window: Any, stride: Any, padding: Any, dilation: Any
) -> tuple[tuple[int, ...], int, int]:
    """The numbers of `fb_window`, products of a result, and how far rows are apart where pixels are rows as they lie.

    x, strides: of images, channels last. out: height and width of the results.
    """
    (_, inner, lines, line), (image, _, pitch, _) = x, strides
    (high, wide), (stride, step), (top, left), (down, right) = window, stride, padding, dilation
    if high == wide == stride == step == 1 and not (top or left):
        return _NO_WINDOW, inner, inner
    across = 1 if right == 1 else wide
    where = step * inner, stride, left * inner, top, image, pitch, line * inner, lines
    return (wide // across * inner, across, down, right * inner, out[1], out[0], *where), high * wide * inner, 0


def _driver(unit: Unit, kind: str, lanes: int, most: int, depth: int) -> str:
    """What all products of a kind have in common in a unit."""
    amx, half, columns = kind in ("bytes", "words"), kind in ("halves", "words"), _VECTORS * lanes
    quads, nbytes = kind == "quads", 2 if half or kind == "pairs" else 1
    lane = "i16" if nbytes == 2 else "i8"
    types = ("f32" if half else "i32", lanes), (lane, depth * lanes), ("i32", lanes)
    v, h, *_ = (unit.vector(*t) for t in types)
    e = "uint16_t" if half else "int16_t" if nbytes == 2 else "X" if amx else "uint8_t"
    names: dict[str, Any] = {"kind": kind, "v": v, "h": h, "e": e, "sum": "float" if half else "int32_t"}
    names |= {"depth": depth, "bytes": depth * columns * (2 if half else 1)}
    s, u = (unit.vector(other, depth * lanes) for other in ("i8", "u8"))
    plain = ("uint16_t",) if half else ("int8_t", "uint8_t") if amx else ("uint8_t",) if quads else ()
    text = "".join(_COPIED.format(vector=u if quads else h, x=x) for x in plain)
    fill, copies = 16 * depth, "some % 2 == 0 && s.x_stride % 512" if half else "false"
    copies = "!raised && some % 4 == 0 && s.x_stride % 2048" if quads else copies
    if amx:
        unit.helpers.setdefault("fb_amx", _AMX)
        text += _AMX_TILE.format(**names)
        how = {"config": "int64_t last = 0;", "configure": "if (count != last) fb_tiles_of(last = count);"}
        how |= {"release": "FB_TILE_RELEASE();", "call": f"fb_{kind}_tile", "more": ", next, count"}
        copies = f"some % {fill} == 0"
    else:
        text += (_PAIRS if kind == "pairs" else _HALVES if half else _QUADS).format(**names, s=s, u=u)
        text += _REPEAT.format(**names, lanes=lanes)
        text += "".join(_tile(rows, lanes, names) for rows in range(1, most + 1))
        pointers = ", ".join(f"fb_{kind}_tile{rows}" for rows in range(1, most + 1))
        how = {"config": f"static const decltype(&fb_{kind}_tile1) heights[] = {{nullptr, {pointers}}};"}
        how |= {"configure": "", "release": "", "call": "heights[count]", "more": ", start, next"}
    gather = "if (s.length) fb_window(s, x, r0 + i, k, some, its), j = some;" if half else ""
    how |= {"in_place": copies, "copied": u if quads else h, "gather": gather}
    if half:
        unit.helpers.setdefault("fb_clip", CLIP)
        unit.helpers.setdefault("fb_window", _WINDOWS.format(h=h, w=depth * lanes))
    sizes = {"most": most, "columns": columns, "head": int(depth == VNNI), "fill": fill, "w": depth * lanes}
    sizes |= {"piece": _PIECE // nbytes, "gap": _GAP // nbytes, "block": _BLOCK, "cache": unit.target.cache // 2}
    return text + _DRIVER.format(**names, **how, **sizes, step=fill if amx else depth)


def _tile(rows: int, lanes: int, names: Mapping[str, Any]) -> str:
    sums, v = [(r, n) for r in range(rows) for n in range(_VECTORS)], names["v"]
    wide = names["bytes"] // _VECTORS
    products = [
        f"    x = fb_repeat(a + {r} * row); "
        + " ".join(f"s{r}_{n} = fb_add(s{r}_{n}, x, w{n});" for n in range(_VECTORS))
        for r in range(rows)
    ]
    return _TILE.format(
        **names,
        rows=rows,
        zeros=", ".join(f"s{r}_{n} = {{}}" for r, n in sums),
        starts="\n".join(f"    s{r}_{n} = *(const {v}u*)(start + {4 * n * lanes});" for r, n in sums),
        panel=", ".join(f"w{n} = fb_{names['kind']}_panel(b + {n * wide})" for n in range(_VECTORS)),
        products="\n".join(products),
        sums="\n".join(f"    s{r}_{n} += *(const {v}u*)(c + {r} * ldc + {n * lanes});" for r, n in sums),
        stores="\n".join(f"  *({v}u*)(c + {r} * ldc + {n * lanes}) = s{r}_{n};" for r, n in sums),
    )
