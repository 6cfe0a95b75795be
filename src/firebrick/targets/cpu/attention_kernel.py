"""Attention as C++: scores of a block of queries stay in cache until the values that they weigh are added up.

Keys and values are taken some hundreds at a time, with running maxima and sums, as FlashAttention does (Dao et al.,
NeurIPS 2022). Panels of them serve all queries of a part. Keys that no query of a block may see are left out: those
ahead of the last one, or beyond the last one that the values of a mask let the block see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from firebrick.errors import LoweringError
from firebrick.ir.index.expr import ONE, Expr, as_int
from firebrick.ir.loops.program import Extern, Ref
from firebrick.targets.cpu.cpp_types import size_text
from firebrick.targets.cpu.epilogue import writing
from firebrick.targets.cpu.matmul_kernel import CHAIN, MOST_ROWS, POINTS, REGISTERS, SERIAL, panel_floats
from firebrick.targets.cpu.tiles import ROW, panels, tile
from firebrick.targets.cpu.unit_writer import Unit

OP = "firebrick::attention.out"

WIDEST = CHAIN
"""Elements of a head: one chain of products."""
_ROWS, _KEYS = 32, 256
"""Queries of a block, and keys at a time."""
_PARTS, _BLOCKS = 4, 8
"""A thread's, whose work differs under a mask; and most blocks of one: the sums of bfloat16 are held."""

_DRIVER = """\
struct fb_attention {{
  int64_t batch, heads, rows, keys, size, q[4], k[4], v[4], out[4], mask[4], parts;
  float scale;
  bool causal;
  void (*const* tiles)({types});
}};
static __thread float fb_heads[{floats}] __attribute__((aligned(64)));
static inline {v} fb_most({v} a, {v} b) {{ return {most_of}; }}
template <typename T> static bool fb_small(const T* x, int64_t stride, int64_t rows, int64_t n) {{
  {v} top = {{}};
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < n; j += {w}) {{
      const {v} y = fb_read(x + r * stride + j);
      top = fb_most(top, y < 0.0f ? -y : y);
    }}
  return {fold}(top) <= 1e17f;
}}
template <typename T> static int64_t fb_seen(const T* mask, int64_t stride, int64_t rows, int64_t n) {{
  for (int64_t j = (n - 1) / {w} * {w}; n > 0; n = j, j -= {w}) {{
    {v} top = {v}_of(-__builtin_inff());
    for (int64_t r = 0; r < rows; r++)
      top = fb_most(top, {i}{{{iota}}} < {i}_of((int32_t)(n - j)) ? fb_read(mask + r * stride + j, n - j) : top);
    if ({fold}(top) != -__builtin_inff()) break;
  }}
  return n;
}}
template <typename T> static void fb_weigh(const fb_attention& s, float* x, const T* mask, int64_t n, int64_t live,
    bool first, float& top, float& sum, float* out) {{
  {v} most = {v}_of(first ? -__builtin_inff() : top), all = {{}};
  for (int64_t j = 0; j < n; j += {w}) {{
    {v} y = *(const {v}u*)(x + j) * s.scale;
    if (mask) y += n - j < {w} ? fb_read(mask + j, n - j) : fb_read(mask + j);
    if (live - j < {w}) y = {i}{{{iota}}} < {i}_of((int32_t)(live - j)) ? y : {v}_of(-__builtin_inff());
    *({v}u*)(x + j) = y;
    most = {larger}(y, most);
  }}
  const float now = {largest}(most), from = now == -__builtin_inff() ? 0.0f : now;
  for (int64_t j = 0; j < n; j += {w}) all += *({v}u*)(x + j) = {exp}(*(const {v}u*)(x + j) - from);
  const float change = first ? 1.0f : {exp}({v}_of(top - from))[0];
  for (int64_t j = 0; j < s.size && change != 1.0f; j += {w}) *({v}u*)(out + j) *= change;
  sum = (first ? 0.0f : sum * change) + {add}(all), top = now;
}}
template <typename T> static void fb_attend(const fb_attention& s, const T* q, const T* k, const T* v, const T* mask,
    T* results, int64_t begin, int64_t end) {{
  float *const its_keys = fb_heads, *const its_values = its_keys + {keys} * {widest};
  float *const left = its_values + {keys} * {widest}, *const scores = left + {rows} * {row};
  const bool same = sizeof(T) == 4;
  float* const out = same ? (float*)results : scores + {rows} * {row} - begin * s.size;
  const int64_t pitch = same ? s.out[3] : s.size;
  float tops[end - begin], sums[end - begin];
  int64_t seen[(end - begin - 1) / {rows} + 1], reach = 0;
  for (int64_t b = begin; b < end; b += {rows}) {{
    const int64_t count = end - b < {rows} ? end - b : {rows}, read = (b / {eager} + 1) * {eager};
    const int64_t whole = s.causal && read < s.keys ? read : s.keys;
    int64_t n = s.causal && b + count < whole ? b + count : whole;
    if (mask) n = fb_seen(mask + b * s.mask[3], s.mask[3], s.mask[3] ? count : 1, n);
    bool small = n == whole || fb_small(v + n * s.v[3], s.v[3], whole - n, s.size);
    if (mask && n < whole) small = small && fb_small(k + n * s.k[3], s.k[3], whole - n, s.size)
        && fb_small(q + b * s.q[3], s.q[3], count, s.size);
    seen[(b - begin) / {rows}] = n = small ? n : whole;
    reach = n > reach ? n : reach;
  }}
  for (int64_t n0 = 0; n0 < reach || n0 == 0; n0 += {keys}) {{
    const int64_t some = reach - n0 < {keys} ? reach - n0 : {keys};
    {turned}<T>(k + n0 * s.k[3], s.k[3], some, s.size, its_keys, {columns}, s.size);
    {copied}<T>(v + n0 * s.v[3], s.v[3], s.size, some, its_values, {columns}, {keys});
    for (int64_t b = begin; b < end; b += {rows}) {{
      const int64_t rest = seen[(b - begin) / {rows}] - n0, n1 = rest < some ? rest : some;
      const int64_t count = end - b < {rows} ? end - b : {rows}, tiles = (count + {most} - 1) / {most};
      for (int64_t r = b; n1 <= 0 && n0 == 0 && r < b + count; r++)
        sums[r - begin] = 0, __builtin_memset(out + r * pitch, 0, s.size * 4);
      if (n1 <= 0) continue;
      const auto multiply = [&](const float* a, const float* b, int64_t part, float* c, int64_t apart, bool first) {{
        for (int64_t t = 0; t < tiles; t++) {{
          const int64_t r = count * t / tiles;
          s.tiles[count * (t + 1) / tiles - r](a + r * {row}, b, {columns}, part, b + part * {columns}, {columns},
              c + r * apart, apart, first);
        }}
      }};
      for (int64_t r = 0; r < count; r++)
        for (int64_t j = 0; j < s.size; j += {w}) *({v}u*)(left + r * {row} + j) = fb_read(q + (b + r) * s.q[3] + j);
      for (int64_t n = 0; n < n1; n += {columns})
        multiply(left, its_keys + n * s.size, s.size, scores + n, {row}, true);
      for (int64_t r = b; r < b + count; r++) {{
        const int64_t live = s.causal && r + 1 - n0 < n1 ? r + 1 - n0 : n1;
        fb_weigh(s, scores + (r - b) * {row}, mask ? mask + r * s.mask[3] + n0 : nullptr, n1, live, n0 == 0,
            tops[r - begin], sums[r - begin], out + r * pitch);
      }}
      for (int64_t c = 0; c < s.size; c += {columns})
        for (int64_t p = 0; p < n1; p += {chain})
          multiply(scores + p, its_values + c * {keys} + p * {columns}, n1 - p < {chain} ? n1 - p : {chain},
              out + b * pitch + c, pitch, n0 + p == 0);
    }}
  }}
  for (int64_t r = begin; r < end; r++) {{
    const float sum = sums[r - begin] == 0.0f ? 1.0f : sums[r - begin];
    for (int64_t j = 0; j < s.size; j += {w}) fb_write(results + r * s.out[3] + j, *({v}u*)(out + r * pitch + j) / sum);
  }}
}}
template <typename T> static void fb_attention_part(void* const* args, const int64_t* shape, int64_t begin,
    int64_t end) {{
  const fb_attention& s = *(const fb_attention*)shape;
  for (int64_t i = begin; i < end; i++) {{
    const int64_t blocks = (s.rows - 1) / {rows} + 1, z = i % s.parts, to = blocks * (z + 1) / s.parts * {rows};
    const int64_t n = i / s.parts / s.heads, h = i / s.parts % s.heads;
    const auto at = [&](int64_t k, const int64_t* p) {{ return (T*)args[k] + p[0] + n * p[1] + h * p[2]; }};
    fb_attend<T>(s, at(0, s.q), at(1, s.k), at(2, s.v), s.mask[0] < 0 ? nullptr : at(3, s.mask),
        at(s.mask[0] < 0 ? 3 : 4, s.out), blocks * z / s.parts * {rows}, to < s.rows ? to : s.rows);
  }}
}}
"""
"""Of q, k, v, out and mask: the offset, none where it is negative, and strides of batches, heads and rows. What is left
out has weights of zero: it shows only beside values that are no numbers, which eager mode multiplies as far as its
kernel reads, to the end of a block of keys, and where a hidden score would be infinite or none."""
_EAGER = 512
"""Keys that eager mode's kernel takes at a time."""

_KERNEL = """\
static void (*const {name}_tiles[])({types}) = {{nullptr, {tiles}}};
extern "C" void {name}(void* const* args, const int64_t* sizes) {{
  const int64_t heads = {heads}, blocks = ({rows} - 1) / {block} + 1;
  const int64_t some = {parts} / (heads < 1 ? 1 : heads) + (blocks - 1) / {most} + 1;
  const fb_attention s = {{{numbers}, some < blocks ? some : blocks, {scale!r}f, {causal}, {name}_tiles}};
  const int64_t products = heads * s.rows * s.keys * s.size;
  fb_parallel(fb_attention_part<{type}>, args, (const int64_t*)&s, heads * s.parts, products > {serial});
}}
"""


@dataclass(frozen=True, slots=True)
class Attention:
    """One shape of attention [batch, heads, rows, keys, size], and the places of one call's buffers.

    places: offset, and strides of batches, heads and rows, of queries, keys, values, results and mask. Texts are of
    sizes that each call gives.
    """

    sizes: tuple[int | str, ...]
    places: tuple[tuple[int | str, ...], ...]
    scale: float
    causal: bool
    half: bool = False

    @staticmethod
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[Attention, tuple[str, ...], tuple[Expr, ...]]:
        """The shape of a call, the names of its buffers in the order of the kernel's arguments, and sizes that vary."""
        q, k, v, mask, scale, causal = call.args
        (out,) = call.outs
        if not (isinstance(q, Ref) and isinstance(k, Ref) and isinstance(v, Ref)) or out is None:
            raise LoweringError(f"{call.op} has arguments of another kind than its kernel")
        given: list[Expr] = []
        number = partial(size_text, sizes=given)
        places = [(as_int(t.offset), *map(number, t.strides[:3])) for t in (q, k, v)]
        hides: tuple[int | str, ...] = (-1, 0, 0, 0)
        if isinstance(mask, Ref):
            steps = [0 if n is ONE else number(s) for n, s in zip(mask.shape, mask.strides, strict=True)]
            hides = (as_int(mask.offset), *[0, 0, *steps][-4:-1])
        places += [(0, *map(number, buffers[out].strides[:3])), hides]
        sizes, half = tuple(map(number, (*q.shape[:3], *k.shape[2:]))), buffers[q.buffer].dtype == "bf16"
        fields: Any = (sizes, tuple(places), scale, causal, half)
        return Attention(*fields), (*(t.buffer for t in (q, k, v, mask) if isinstance(t, Ref)), out), tuple(given)

    @property
    def kind(self) -> str:
        """A word for the kernel's name."""
        return "attention_" + "x".join(str(n) if isinstance(n, int) else "n" for n in self.sizes[2:])

    def text(self, unit: Unit, name: str) -> str:
        """The kernel, less what `unit` puts before it."""
        (batch, heads, rows, *_), lanes = self.sizes, max(unit.target.vector_bytes // 4, 4)
        most = min(MOST_ROWS, (REGISTERS.get(unit.target.vector_bytes, 16) - 3) // 2)
        counts = range(1, _ROWS + 1) if isinstance(rows, str) else (min(rows, _ROWS), (rows - 1) % _ROWS + 1)
        heights = {n // -(-n // most) + more for n in counts for more in (0, n % -(-n // most) != 0)}
        tiles = [tile(unit, lanes, n, 2, lanes) if n in heights else "nullptr" for n in range(1, most + 1)]
        floats, most_of = panel_floats(unit.target.cache), "(a > b) | (a != a) ? a : b"
        facts: Any = {"w": lanes, "columns": 2 * lanes, "most": most, "row": ROW, "rows": _ROWS, "keys": _KEYS}
        facts |= {"v": unit.vector("f32", lanes), "i": unit.vector("i32", lanes), "most_of": most_of, "eager": _EAGER}
        facts |= {"fold": unit.fold("most", most_of, "f32", lanes), "add": unit.fold("sum", "a + b", "f32", lanes)}
        pick = unit.inline("larger", lanes)
        facts |= {"larger": pick, "largest": unit.fold("larger", f"{pick}(a, b)", "f32", lanes)}
        facts |= {"exp": unit.inline("exp", lanes), "iota": ", ".join(map(str, range(lanes))), "chain": CHAIN}
        facts |= {"turned": panels(unit, lanes, floats, True), "copied": panels(unit, lanes, floats, False)}
        held = 2 * (_KEYS * WIDEST + _ROWS * ROW) + _BLOCKS * _ROWS * WIDEST
        facts |= {"types": POINTS["panels"], "widest": WIDEST, "floats": held}
        writing(unit, lanes)
        unit.helpers.setdefault("fb_attention", _DRIVER.format(**facts))
        numbers = (*self.sizes, *(f"{{{', '.join(map(str, place))}}}" for place in self.places))
        texts: Any = {"types": POINTS["panels"], "tiles": ", ".join(tiles), "numbers": ", ".join(map(str, numbers))}
        texts |= {"heads": f"{batch} * {heads}", "rows": rows, "scale": self.scale, "causal": str(self.causal).lower()}
        texts |= {"type": "uint16_t" if self.half else "float", "block": _ROWS, "most": _BLOCKS, "serial": SERIAL}
        return _KERNEL.format(name=name, **texts, parts=_PARTS * unit.target.threads)
