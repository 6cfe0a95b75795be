"""Matmuls with packed constant weights as C++: tiles of sums in registers, panels of weights in cache.

The scheme is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 34:3, 2008),
without packing of the left factor: its rows are few, or short. Sums of more than `PIECE` products are taken in pieces,
which bounds their rounding error and keeps a panel in cache. The activation is applied before the last store.

Until the weight is packed, panels are made on the fly from the weight as it is, with the same results bit by bit.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firebrick.errors import LoweringError
from firebrick.loops.ir import Extern, Ref
from firebrick.symbolic.expr import as_int

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from firebrick.codegen.cpp_writer import Unit

__all__ = ["FUNCTIONS", "MOST_ROWS", "OP", "PIECE", "REGISTERS", "SERIAL", "Linear"]

OP = "firebrick::linear.out"
PIECE = 256
"""Products that are added in one chain."""

REGISTERS = {64: 32, 32: 16, 16: 32}
"""Bytes of a vector -> vector registers of such machines."""
MOST_ROWS = 14
SERIAL = 1 << 18
"""Multiplications up to which one thread does all."""
_BLOCK = 8
"""Row tiles that share a panel before the next panel is read, where threads have rows of their own."""

_TILE = """\
template <int R, int V, int M, int64_t A>
static __attribute__((noinline)) void fb_tile_{v}(const float* a, const float* b, int64_t pitch, int64_t k,
    const float* next, int64_t step, float* c, int64_t ldc, bool first) {{
  {v} sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) sum[r][j] = {v}{{}};
  for (int64_t p = 0; p < k; p++) {{
    {v} row[V];
    __builtin_prefetch(next + p * step, 0, 2);
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) row[j] = *(const {v}u*)(b + p * pitch + {w} * j);
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {{
      const {v} x = {v}_of(a[r * A + p]);
#pragma GCC unroll 4
      for (int j = 0; j < V; j++) sum[r][j] += x * row[j];
    }}
  }}
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) {{
      float* const to = c + r * ldc + {w} * j;
      const int64_t m = j == V - 1 ? M : {w};
      {v} y = sum[r][j];
      if (!first) y += m == {w} ? *(const {v}u*)to : {v}_load(to, m);
      if (m == {w}) *({v}u*)to = y;
      else {v}_store(to, y, m);
    }}
}}
"""
"""R rows, A apart, and V vectors of results, M lanes of the last one; all `pitch` floats of a panel row lie together.
Meanwhile the next panel is fetched, `step` floats a product, each tile its share: it comes from memory, this one from
cache. What varies between the shapes of a model is no parameter of the template, so that few are compiled."""

FUNCTIONS: Mapping[str, Callable[[Callable[[str], str], tuple[float, ...]], str]] = {
    "none": lambda f, _: "y",
    "relu": lambda f, _: "(y > 0.0f) | (y != y) ? y : {zero}",
    "hardtanh": lambda f, s: f"y < {s[0]!r}f ? {{zero}} + {s[0]!r}f : y > {s[1]!r}f ? {{zero}} + {s[1]!r}f : y",
    "gelu": lambda f, _: f"y * 0.5f * {f('erf1p')}(y * 0.70710678118654752f)",
    # y / 2 * (1 + tanh(u)) without its cancellation: y / (1 + exp(-2u))
    "gelu_tanh": lambda f, _: f"y / (1.0f + {f('exp')}(-1.59576912160573071f * (y + 0.044715f * y * y * y)))",
    "tanh": lambda f, _: f"{f('tanh')}(y)",
    "sigmoid": lambda f, _: f"1.0f / (1.0f + {f('exp')}(-y))",
    "swish": lambda f, _: f"y / (1.0f + {f('exp')}(-y))",
    "hardswish": lambda f, _: "y * (y < -3.0f ? {zero} : y > 3.0f ? {zero} + 6.0f : y + 3.0f) * 0.16666666666666667f",
}
"""Activation -> the text of its value for a vector y; the functions name those of the unit."""

_FINISH = """\
static inline void {name}_finish(float* c, const float* bias, int64_t rows, int64_t n) {{
  for (int64_t r = 0; r < rows; r++)
    for (int64_t j = 0; j < n; j += {w}) {{
      float* const to = c + r * {out_stride} + j;
      const int64_t m = n - j < {w} ? n - j : {w};
      {v} y = m == {w} ? *(const {v}u*)to : {v}_load(to, m);
      if (bias) y += m == {w} ? *(const {v}u*)(bias + j) : {v}_load(bias + j, m);
      y = {function};
      if (m == {w}) *({v}u*)to = y;
      else {v}_store(to, y, m);
    }}
}}
"""

_PART = """\
static void {name}_part(void* const* args, const int64_t*, int64_t begin, int64_t end) {{
  const float* const x = (const float*)args[0] + {x_offset};
  const float* const packed = (const float*)args[1];
  const float* const bias = {bias};
  float* const out = (float*)args[{out}] + {out_offset};
  {plain}
  const int64_t row_from = {row_from}, row_to = {row_to}, step = {block};
  for (int64_t t0 = row_from; t0 < row_to; t0 += step)
    for (int64_t k = 0; k < {inner}; k += {piece}) {{
      const int64_t part = {inner} - k < {piece} ? {inner} - k : {piece};
      for (int64_t p = {panel_from}; p < {panel_to}; p++) {{
        const float* b = packed + (p * {inner} + k) * {columns};
        const int64_t n = {outer} - p * {columns} < {columns} ? {outer} - p * {columns} : {columns};
{pack}
        const int64_t last = t0 + step < row_to ? t0 + step : row_to, some = last - t0;
        const int64_t ahead = ({columns} + some - 1) / some;
        for (int64_t t = t0; t < last; t++) {{
          const float* const next = packed + ((p + 1) * {inner} + k) * {columns} + (t - t0) * ahead * part;
          const int64_t r = {rows} * t / {tiles}, count = {rows} * (t + 1) / {tiles} - r;
          const float* const a = x + r * {x_stride} + k;
          float* const c = out + r * {out_stride} + p * {columns};
{tiles_text}
{finish}
        }}
      }}
    }}
}}
extern "C" void {name}(void* const* args, const int64_t* sizes) {{
  {start};
}}
"""

_PLAIN = """\
const float* const plain = (const float*)args[2];
  const bool whole = packed != plain;
  __attribute__((aligned(64))) float panel[{size}];"""

_PACK = """\
        if (!whole) {{
          const float* const from = plain + {offset} + k * {inner_stride} + p * {columns} * {outer_stride};
          for (int64_t i = 0; i < part; i++)
            for (int64_t j = 0; j < {columns}; j++)
              panel[i * {columns} + j] = j < n ? from[i * {inner_stride} + j * {outer_stride}] : 0.0f;
          b = panel;
        }}"""


@dataclass(frozen=True, slots=True)
class Linear:
    """One shape of matmul, and the buffers of one call of it.

    Offsets and strides in elements. plain: offset and strides [inner, outer] of the weight as it is, None if it is
    always packed.
    """

    rows: int
    inner: int
    outer: int
    columns: int
    x: tuple[int, int]
    plain: tuple[int, int, int] | None
    bias: int | None
    out: tuple[int, int]
    attr: str
    scalars: tuple[float, ...]

    @staticmethod
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[Linear, tuple[str, ...]]:
        """The shape of a call, and the names of its buffers in the order of the kernel's arguments."""
        x, weight, packed, bias, outer, attr, scalars = call.args
        (out,) = call.outs
        if not (isinstance(x, Ref) and isinstance(packed, Ref)) or out is None or as_int(x.strides[1]) != 1:
            raise LoweringError(f"{call.op} has arguments of another kind than its kernel")
        plain = None
        if isinstance(weight, Ref):
            plain = as_int(weight.offset), as_int(weight.strides[0]), as_int(weight.strides[1])
        made = Linear(
            as_int(x.shape[0]),
            as_int(x.shape[1]),
            int(outer),  # type: ignore[call-overload]
            as_int(packed.shape[2]),
            (as_int(x.offset), as_int(x.strides[0])),
            plain,
            as_int(bias.offset) if isinstance(bias, Ref) else None,
            (0, as_int(buffers[out].strides[0])),
            str(attr),
            tuple(scalars),  # type: ignore[arg-type]
        )
        given = [r.buffer for r in (x, packed, weight, bias) if isinstance(r, Ref)]
        return made, (*given, out)

    @property
    def name(self) -> str:
        """Name of the kernel: equal shapes have the same."""
        digest = hashlib.blake2s(repr(self).encode(), digest_size=3).hexdigest()
        return f"linear_{self.rows}x{self.inner}x{self.outer}_{digest}"

    def text(self, unit: Unit, threads: int) -> str:
        """The kernel, less what `unit` puts before it."""
        target = unit.target
        lanes = max(target.vector_bytes // 4, 1)
        while self.columns % lanes:
            lanes //= 2
        vectors = self.columns // lanes
        registers = REGISTERS.get(target.vector_bytes, 16)
        most = max(1, min(MOST_ROWS, (registers - vectors - 1) // vectors))
        tiles = -(-self.rows // most)
        panels = -(-self.outer // self.columns)
        v = unit.vector("f32", lanes)
        unit.helpers.setdefault(f"fb_tile_{v}", _TILE.format(v=v, w=lanes))
        by_rows, count = self._shared(tiles, panels, threads)
        pieces = -(-self.inner // PIECE)
        piece = -(-self.inner // pieces)
        function = FUNCTIONS[self.attr](lambda f: unit.inline(f, lanes), self.scalars).replace("{zero}", f"{v}{{}}")
        place = 2 + (self.plain is not None)
        name = self.name
        serial = self.rows * self.inner * self.outer <= SERIAL
        start = f"{name}_part(args, sizes, 0, {count})" if serial else f"fb_parallel({name}_part, args, sizes, {count})"
        pack = plain = ""
        if self.plain is not None:
            offset, inner_stride, outer_stride = self.plain
            plain = _PLAIN.format(size=piece * self.columns)
            pack = _PACK.format(
                columns=self.columns,
                offset=offset,
                inner_stride=inner_stride,
                outer_stride=outer_stride,
            )
        finish = ""
        if self.attr != "none" or self.bias is not None:
            beside = f"bias + p * {self.columns}" if self.bias is not None else "bias"
            finish = f"          if (k + part == {self.inner}) {name}_finish(c, {beside}, count, n);"
        head = _FINISH.format(name=name, v=v, w=lanes, function=function, out_stride=self.out[1]) if finish else ""
        return head + _PART.format(
            name=name,
            finish=finish,
            outer=self.outer,
            x_offset=self.x[0],
            x_stride=self.x[1],
            bias="nullptr" if self.bias is None else f"(const float*)args[{place}] + {self.bias}",
            out=place + (self.bias is not None),
            out_offset=self.out[0],
            out_stride=self.out[1],
            plain=plain,
            pack=pack,
            row_from="begin" if by_rows else "0",
            row_to="end" if by_rows else str(tiles),
            block=_BLOCK if by_rows else tiles,
            panel_from="0" if by_rows else "begin",
            panel_to=str(panels) if by_rows else "end",
            inner=self.inner,
            piece=piece,
            columns=self.columns,
            rows=self.rows,
            tiles=tiles,
            tiles_text="\n".join(self._tiles(v, lanes, vectors, tiles, panels)),
            start=start,
        )

    def _shared(self, tiles: int, panels: int, threads: int) -> tuple[bool, int]:
        """Whether threads share out rows rather than columns, and how many parts there are."""
        by_rows = self.rows > self.outer
        if (tiles if by_rows else panels) < 2 * threads:
            by_rows = tiles > panels
        return by_rows, tiles if by_rows else panels

    def _tiles(self, v: str, lanes: int, vectors: int, tiles: int, panels: int) -> Iterable[str]:
        """Calls of the tile function for each size of tile that occurs."""
        left = self.outer - (panels - 1) * self.columns
        used = -(-left // lanes)
        small = self.rows // tiles
        sizes = [small, small + 1] if self.rows % tiles else [small]
        widths = [(f"p < {panels - 1}", vectors, lanes), ("", used, left - (used - 1) * lanes)]
        if widths[1][1:] == (vectors, lanes):
            widths = [("", vectors, lanes)]
        elif panels == 1:
            widths = widths[1:]
        arguments = f"(a, b, {self.columns}, part, next, ahead, c, {self.out[1]}, k == 0)"
        for condition, count, lanes_left in widths:
            for rows in sizes:
                tests = [t for t in (condition, f"count == {rows}" if len(sizes) > 1 else "") if t]
                test = f"if ({' && '.join(tests)}) " if tests else ""
                call = f"fb_tile_{v}<{rows}, {count}, {lanes_left}, {self.x[1]}>{arguments};"
                if not condition and len(widths) > 1:
                    test = f"if (p == {panels - 1}{''.join(f' && {t}' for t in tests)}) "
                yield f"          {test}{call}"
