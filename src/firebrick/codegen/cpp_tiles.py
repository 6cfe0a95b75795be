"""C++ text of the inner loops of matmuls: tiles of sums in registers, and panels made of a weight on the way.

fb_dot:   rows of both factors lie along the sum. Each sum is a vector whose lanes are added up at the end, so no chain
          of additions is long and nothing is packed.
fb_tile:  columns of the weight lie side by side: a row of a panel times single numbers of the left factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.codegen.cpp_transpose import SHUFFLE, transpose_helper

if TYPE_CHECKING:
    from firebrick.codegen.cpp_writer import Unit

__all__ = ["ROW", "STORE", "dot", "panels", "tile"]

ROW = 528
"""Floats between rows of the left factor that were copied for `fb_tile`: a constant, so that one register holds all."""

_READ = """\
static inline {v} fb_read(const float* p) {{ return *(const {v}u*)p; }}
static inline {v} fb_read(const float* p, int64_t m) {{ return {v}_load(p, m); }}
static inline {v} fb_read(const uint16_t* p) {{ return ({v})(__builtin_convertvector(*(const {h}u*)p, {i}) << 16); }}
static inline {v} fb_read(const uint16_t* p, int64_t m) {{
  return ({v})(__builtin_convertvector({h}_load(p, m), {i}) << 16);
}}
"""
"""A vector, or its first m lanes and zeros, of f32 or bf16."""

_DOT = """\
template <typename W> static inline {v} fb_rest_{v}(const W* p, int64_t k) {{
  if (k < {w}) return fb_read(p, k);
  return ({v})(({i})fb_read(p + k - {w}) & ({i}{{{iota}}} >= {i}_of((int32_t)({w} - k % {w}))));
}}
template <int R, int H, bool T, typename W = float> static __attribute__((noinline)) void fb_dot_{v}(const float* a,
    int64_t lda, const W* b, int64_t ldb, int64_t k, const W* next, int64_t ahead, float* c, int64_t ldc, int64_t n,
    bool first) {{
  constexpr int N = R * H;
  {v} sum[N][4];
#pragma GCC unroll 32
  for (int i = 0; i < N; i++)
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) sum[i][j] = {v}{{}};
  const W* row[4 * H];
  for (int j = 0; j < 4 * H; j++) row[j] = b + (!T || j < n ? j : n - 1) * ldb;
  for (int64_t p = 0; p + {w} <= k; p += {w}) {{
    for (int64_t q = 0; q < ahead; q++) __builtin_prefetch(next + q * ldb + p, 0, 2);
    {v} x[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) x[r] = *(const {v}u*)(a + r * lda + p);
#pragma GCC unroll 16
    for (int j = 0; j < 4 * H; j++) {{
      const {v} y = fb_read(row[j] + p);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sum[r * H + j / 4][j % 4] += x[r] * y;
    }}
  }}
  if (T && k % {w}) {{
    {v} x[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) x[r] = fb_rest_{v}(a + r * lda, k);
#pragma GCC unroll 16
    for (int j = 0; j < 4 * H; j++) {{
      const {v} y = fb_rest_{v}(row[j], k);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sum[r * H + j / 4][j % 4] += x[r] * y;
    }}
  }}
  __attribute__((aligned(64))) float sums[(N + {g} - 1) / {g} * {w}];
#pragma GCC unroll 16
  for (int i = 0; i < N; i += {g}) {{
    {v} z[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {{
{level}
    }}
    const {v} even = fb_pair2_{v}(z[0], z[2]), odd = fb_pair2_{v}(z[1], z[3]);
    *({v}*)(sums + i / {g} * {w}) = fb_pair1_{v}(even, odd);
  }}
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int h = 0; h < H; h++) {{
      const int i = r * H + h;
      const float* const y = sums + i / {g} * {w} + {place};
      float* const to = c + r * ldc + 4 * h;
      if (!T || n == 4 * H) *({q}u*)to = first ? *(const {q}u*)y : *({q}u*)to + *(const {q}u*)y;
      else
        for (int j = 0; j < 4 && 4 * h + j < n; j++) to[j] = first ? y[j] : to[j] + y[j];
    }}
}}
"""
"""R rows by 4 * H columns; sums of k products. With T, n of the columns are meant, and k may be any number.
Meanwhile `ahead` rows of the weight from `next` on are fetched."""

_LEVELS = {
    16: (
        """\
      const {v} low = fb_pair8_{v}(sum[i][j], sum[i + 1 < N ? i + 1 : i][j]);
      const int m = i + 2 < N ? i + 2 : i;
      z[j] = fb_pair4_{v}(low, m == i ? low : fb_pair8_{v}(sum[m][j], sum[m + 1 < N ? m + 1 : m][j]));""",
        "(i % 2 * 8 + i / 2 % 2 * 4)",
    ),
    8: ("      z[j] = fb_pair4_{v}(sum[i][j], sum[i + 1 < N ? i + 1 : i][j]);", "i % 2 * 4"),
    4: ("      z[j] = sum[i][j];", "0"),
}
"""Lanes -> how their sums become groups of four lanes, one group for each four columns; where such a group is then."""

STORE = """\
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
"""Ends a function whose sums are sum[R][V]: they are stored, or added to what is there; M lanes of the last vector."""

_TILE = (
    """\
template <int R, int V, int M> static __attribute__((noinline)) void fb_tile_{v}(const float* a, const float* b,
    int64_t pitch, int64_t k, const float* next, int64_t step, float* c, int64_t ldc, bool first) {{
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
      const {v} x = {v}_of(a[r * {row} + p]);
#pragma GCC unroll 4
      for (int j = 0; j < V; j++) sum[r][j] += x * row[j];
    }}
  }}
"""
    + STORE
)
"""R rows and V vectors of results, M lanes of the last one; rows of the panel are `pitch` floats apart. Meanwhile what
is needed next is fetched, `step` floats a product, each tile its share."""

_PANEL = """\
static __thread float fb_panels[{floats}] __attribute__((aligned(64)));
template <typename W> static __attribute__((noinline)) void fb_turned_{v}(const W* w, int64_t stride, int64_t n,
    int64_t k, float* to, int64_t columns) {{
  for (int64_t j = 0; j < n; j += {w}) {{
    const int64_t rows = n - j < {w} ? n - j : {w};
    int64_t i = 0;
    for (; i + {w} <= k; i += {w}) {{
      {v} t[{w}];
      if constexpr (sizeof(W) == 4) fb_turn_{v}(t, w + j * stride + i, stride, rows);
      else {{
        float wide[{w} * {w}];
        for (int64_t q = 0; q < rows; q++) *({v}u*)(wide + q * {w}) = fb_read(w + (j + q) * stride + i);
        fb_turn_{v}(t, wide, {w}, rows);
      }}
#pragma GCC unroll 16
      for (int q = 0; q < {w}; q++) *({v}u*)(to + (i + q) * columns + j) = t[q];
    }}
    for (; i < k; i++)
      for (int64_t q = 0; q < {w}; q++)
        to[i * columns + j + q] = q < rows ? fb_read(w + (j + q) * stride + i, 1)[0] : 0.0f;
  }}
}}
template <typename W> static __attribute__((noinline)) void fb_copied_{v}(const W* w, int64_t stride, int64_t n,
    int64_t k, float* to, int64_t columns) {{
  for (int64_t i = 0; i < k; i++)
    for (int64_t j = 0; j < n; j += {w}) {{
      const W* const p = w + i * stride + j;
      *({v}u*)(to + i * columns + j) = n - j < {w} ? fb_read(p, n - j) : fb_read(p);
    }}
}}
"""
"""Panels of a thread, from a weight whose rows lie along the sum, and from one whose columns lie side by side. Columns
beyond n up to a whole vector are zeros; further ones are not read."""


def _pair(v: str, index: str, lanes: int, distance: int) -> str:
    """Adds lanes that are `distance` apart; chunks of a's sums and of b's take turns."""
    low = [lane if not lane & distance else lane + lanes for lane in range(lanes)]
    high = [(lane ^ distance) + (lanes if lane & distance else 0) for lane in range(lanes)]
    args = (f"fb_shuffle({v}, {index}, a, b, {', '.join(map(str, picked))})" for picked in (low, high))
    return f"static inline {v} fb_pair{distance}_{v}({v} a, {v} b) {{ return {' + '.join(args)}; }}\n"


def _reading(unit: Unit, lanes: int) -> None:
    """Put `fb_read` into the unit."""
    v, i, h = (unit.vector(lane, lanes) for lane in ("f32", "i32", "u16"))
    unit.helpers.setdefault(f"fb_read_{v}", _READ.format(v=v, i=i, h=h))


def dot(unit: Unit, lanes: int) -> str:
    """Name of the template of dot products."""
    _reading(unit, lanes)
    v, i, q = unit.vector("f32", lanes), unit.vector("i32", lanes), unit.vector("f32", 4)
    name = f"fb_dot_{v}"
    if name not in unit.helpers:
        level, place = _LEVELS[lanes]
        pairs = "".join(_pair(v, i, lanes, d) for d in (8, 4, 2, 1) if d < lanes)
        iota = ", ".join(map(str, range(lanes)))
        text = _DOT.format(v=v, i=i, q=q, w=lanes, g=lanes // 4, iota=iota, level=level.format(v=v), place=place)
        unit.helpers[name] = SHUFFLE + pairs + text
    return name


def tile(unit: Unit, lanes: int) -> str:
    """Name of the template of tiles beside a panel."""
    v = unit.vector("f32", lanes)
    unit.helpers.setdefault(f"fb_tile_{v}", _TILE.format(v=v, w=lanes, row=ROW))
    return f"fb_tile_{v}"


def panels(unit: Unit, lanes: int, floats: int, turned: bool) -> str:
    """Name of the template that makes panels; their memory is `fb_panels`."""
    _reading(unit, lanes)
    v = unit.vector("f32", lanes)
    unit.helpers.setdefault(f"turn_{v}", transpose_helper(v, "float", lanes))
    unit.helpers.setdefault(f"fb_panel_{v}", _PANEL.format(v=v, w=lanes, floats=floats))
    return f"fb_{'turned' if turned else 'copied'}_{v}"
