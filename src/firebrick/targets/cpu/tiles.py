"""C++ text of the inner loops of matmuls: tiles of sums in registers, and panels made of a weight on the way.

fb_dot:   rows of both factors lie along the sum. Each sum is a vector whose lanes are added up at the end, so no chain
          of additions is long and nothing is packed.
fb_tile:  columns of the weight lie side by side: a row of a panel times single numbers of the left factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from firebrick.targets.cpu.transpose import SHUFFLE, transpose_helper
from firebrick.targets.cpu.unit_writer import Unit

ROW = 528
"""Floats between rows of the left factor that were copied for `fb_tile`: a constant, so that one register holds all."""

CLIP = """\
template <typename T> static void fb_clip(T* to, const T* line, int64_t from, int64_t n, int64_t size) {
  const int64_t before = from < 0 ? (-from < n ? -from : n) : 0, most = size - from;
  const int64_t end = most < before ? before : most < n ? most : n;
  __builtin_memset(to, 0, before * sizeof(T));
  __builtin_memcpy(to + before, line + from + before, (end - before) * sizeof(T));
  __builtin_memset(to + end, 0, (n - end) * sizeof(T));
}
"""
"""A copy of n elements of a line of `size` elements, from `from` on, zeros outside."""

_READ = """\
static inline {v} fb_read(const float* p) {{ return *(const {v}u*)p; }}
static inline {v} fb_read(const float* p, int64_t m) {{ return {v}_load(p, m); }}
static inline {v} fb_read(const uint16_t* p) {{ return ({v})(__builtin_convertvector(*(const {h}u*)p, {i}) << 16); }}
static inline {v} fb_read(const uint16_t* p, int64_t m) {{
  return ({v})(__builtin_convertvector({h}_load(p, m), {i}) << 16);
}}
"""
"""A vector, or its first m lanes and zeros, of f32 or bf16."""

_REST = """\
template <typename W> static inline {v} fb_rest_{v}(const W* p, int64_t k) {{
  if (k < {w}) return fb_read(p, k);
  return ({v})(({i})fb_read(p + k - {w}) & ({i}{{{iota}}} >= {i}_of((int32_t)({w} - k % {w}))));
}}
"""

_DOT = """\
static __attribute__((noinline)) void {name}(const float* a, int64_t lda, const {type}* b, int64_t ldb, int64_t k,
    const {type}* next, int64_t ahead, float* c, int64_t ldc, int64_t n, bool first) {{
  {v} {zeros};
  const {type} {rows};
  for (int64_t p = 0; p + {w} <= k; p += {w}) {{
    for (int64_t q = 0; q < ahead; q++) __builtin_prefetch(next + q * ldb + p, 0, 2);
{products}
  }}
{rest}
  __attribute__((aligned(64))) float sums[{floats}];
{groups}
  if (n == {columns}) {{
{stores}
    return;
  }}
  for (int64_t i = 0; i < {count}; i++) {{
    const float* const y = sums + i / {g} * {w} + {place};
    float* const to = c + i / {h} * ldc + i % {h} * 4;
    for (int64_t j = 0; j < n - i % {h} * 4 && j < 4; j++) to[j] = first ? y[j] : to[j] + y[j];
  }}
}}
"""
"""Some rows by `columns`, of which n are meant; sums of k products. Meanwhile `ahead` rows of the weight from `next` on
are fetched. Loops over sums are written out, here and in the other tiles: compilers take 30 % less time for it."""

_PLACES: Mapping[int, tuple[str, Callable[[int], int]]] = {
    16: ("(i % 2 * 8 + i / 2 % 2 * 4)", lambda i: i % 2 * 8 + i // 2 % 2 * 4),
    8: ("i % 2 * 4", lambda i: i % 2 * 4),
    4: ("0", lambda i: 0),
}
"""Lanes -> where the group of four lanes is whose sums are the i-th four results, in C++ and here."""

_TILE = """\
static __attribute__((noinline)) void {name}(const float* a, const float* b, int64_t pitch, int64_t k,
    const float* next, int64_t step, float* c, int64_t ldc, bool first) {{
  {v} {zeros};
  for (int64_t p = 0; p < k; p++) {{
    __builtin_prefetch(next + p * step, 0, 2);
    const {v} {panel};
{products}
  }}
{stores}
}}
"""
"""Rows by vectors of results; rows of the panel are `pitch` floats apart. Meanwhile what is needed next is fetched,
`step` floats a product, each tile its share."""

_PIXELS = """\
static __attribute__((noinline)) void {name}(const float* a, int64_t apart, const int64_t* at, int64_t runs,
    const float* b, int64_t k, const float* next, int64_t step, float* c, int64_t ldc, bool first, const float* bias,
    const float* other, float low, float high) {{
  const {v} {starts};
  {v} {zeros};
  for (int64_t h = 0; h < runs; h++) {{
    const float {places};
    for (int64_t p = 0; p < k; p++, b += {columns}, next += step) {{
      __builtin_prefetch(next, 0, 2);
      const {v} {panel};
{products}
      {moves}
    }}
  }}
{stores}
}}
"""
"""Pixels, `apart` elements apart, by vectors of output channels. What varies between the shapes of a model is an
argument, so that few are compiled; an address is one of five pointers plus nothing, `apart` or twice that, as
processors compute addresses."""

_BY_PANEL = {"tile": (_TILE, " " * 4), "pixels": (_PIXELS, " " * 6)}
"""Kind -> its text, and how far its products are indented."""

_PANEL = """\
static __thread float fb_panels[{floats}] __attribute__((aligned(64)));
template <typename W> static __attribute__((noinline)) void fb_turned_{v}(const W* w, int64_t stride, int64_t n,
    int64_t k, float* panels, int64_t columns, int64_t piece) {{
  for (int64_t j = 0; j < n; j += {w}) {{
    float* const to = panels + j / columns * columns * (piece - 1);
    const int64_t rows = n - j < {w} ? n - j : {w};
    int64_t i = 0;
    for (; i + {w} <= k; i += {w}) {{
      {v} t[{w}];
      if constexpr (sizeof(W) == 4) fb_turn_{v}(t, w + j * stride + i, stride, rows);
      else {{
        {v} r[{w}];
#pragma GCC unroll 16
        for (int q = 0; q < {w}; q++) r[q] = q < rows ? fb_read(w + (j + q) * stride + i) : {v}{{}};
        fb_exchange_{v}(t, r);
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
    int64_t k, float* panels, int64_t columns, int64_t piece) {{
  for (int64_t i = 0; i < k; i++) {{
    const W* p = w + i * stride;
    float* to = panels + i * columns;
    int64_t left = n;
    for (; left >= {both}; left -= {both}, p += {both}, to += {both} * piece) {{
      const {v} x = fb_read(p), y = fb_read(p + {w});
      *({v}u*)to = x, *({v}u*)(to + {w}) = y;
    }}
    for (; left > 0; left -= {w}, p += {w}, to += {w}) *({v}u*)to = left < {w} ? fb_read(p, left) : fb_read(p);
  }}
}}
"""
"""Some panels of a thread, of `piece` rows each, from a weight whose rows lie along the sum, and from one whose columns
lie side by side. Columns beyond n up to a whole vector are zeros; further ones are not read."""


def _pair(v: str, index: str, lanes: int, distance: int) -> str:
    """Adds lanes that are `distance` apart; chunks of a's sums and of b's take turns."""
    low = [lane if not lane & distance else lane + lanes for lane in range(lanes)]
    high = [(lane ^ distance) + (lanes if lane & distance else 0) for lane in range(lanes)]
    args = (f"fb_shuffle({v}, {index}, a, b, {', '.join(map(str, picked))})" for picked in (low, high))
    return f"static inline {v} fb_pair{distance}_{v}({v} a, {v} b) {{ return {' + '.join(args)}; }}\n"


def reading(unit: Unit, lanes: int) -> None:
    """Put `fb_read` into the unit."""
    v, i, h = (unit.vector(lane, lanes) for lane in ("f32", "i32", "u16"))
    unit.helpers.setdefault(f"fb_read_{v}", _READ.format(v=v, i=i, h=h))


def dot(unit: Unit, lanes: int, rows: int, columns: int, tail: bool, scalar: str = "float") -> str:
    """Name of the function for `rows` by 4 or 8 columns, the weight float or bf16; tail: k may be any number."""
    reading(unit, lanes)
    v, i, q = unit.vector("f32", lanes), unit.vector("i32", lanes), unit.vector("f32", 4)
    pairs = "".join(_pair(v, i, lanes, d) for d in (8, 4, 2, 1) if d < lanes)
    iota = ", ".join(map(str, range(lanes)))
    unit.helpers.setdefault(f"fb_rest_{v}", SHUFFLE + pairs + _REST.format(v=v, i=i, w=lanes, iota=iota))
    name = f"fb_dot_{v}_{rows}x{columns}{'_tail' if tail else ''}{'' if scalar == 'float' else '_half'}"
    if name in unit.helpers:
        return name
    h, g = columns // 4, lanes // 4

    def products(left: str, right: str) -> list[str]:
        lines = [f"    const {v} x{r} = {left.format(f'a + {r} * lda')};" for r in range(rows)]
        for j in range(columns):
            sums = "".join(f" s{r}_{j} += x{r} * y{j};" for r in range(rows))
            lines.append(f"    const {v} y{j} = {right.format(f'b{j}')};{sums}")
        return lines

    rest = products(f"fb_rest_{v}({{}}, k)", f"fb_rest_{v}({{}}, k)")
    sizes = {"w": lanes, "g": g, "h": h, "count": rows * h, "columns": columns, "floats": -(-rows * h // g) * lanes}
    texts = {"name": name, "type": scalar, "v": v, "zeros": _zeros(rows, columns), "place": _PLACES[lanes][0]}
    unit.helpers[name] = _DOT.format(
        rows=", ".join(f"*b{j} = b + (n > {j} ? {j} : n - 1) * ldb" for j in range(columns)),
        products="\n".join(products(f"*(const {v}u*)({{}} + p)", "fb_read({} + p)")),
        rest="\n".join((f"  if (k % {lanes}) {{", *rest, "  }")) if tail else "",
        groups="\n".join(line for k in range(0, rows * h, g) for line in _grouped(v, lanes, h, k, rows * h)),
        stores=_dot_stores(lanes, q, rows, h),
        **{**sizes, **texts},
    )
    return name


def _dot_stores(lanes: int, q: str, rows: int, h: int) -> str:
    """Sums in groups of four are stored, or added to what is there."""
    g, place = lanes // 4, _PLACES[lanes][1]
    starts = [i // g * lanes + place(i) for i in range(rows * h)]
    results = [f"c + {r} * ldc + {4 * k}" for r in range(rows) for k in range(h)]
    lines = [f"    {q} {', '.join(f't{i} = *(const {q}*)(sums + {n})' for i, n in enumerate(starts))};"]
    added = " ".join(f"t{i} += *(const {q}u*)({to});" for i, to in enumerate(results))
    lines += [f"    if (!first) {{ {added} }}"]
    return "\n".join([*lines, *(f"    *({q}u*)({to}) = t{i};" for i, to in enumerate(results))])


def _grouped(v: str, lanes: int, h: int, first: int, count: int) -> list[str]:
    """The lanes of as many sums as a vector has groups of four lanes for, added up; they become neighbours."""
    lines, sums = [], []
    for j in range(4):
        names = [f"s{i // h}_{i % h * 4 + j}" for i in range(first, min(first + lanes // 4, count))]
        for distance in (d for d in (8, 4) if d < lanes):
            pairs = [(names[k], names[min(k + 1, len(names) - 1)]) for k in range(0, len(names), 2)]
            names = [f"z{distance}_{first + k}_{j}" for k in range(len(pairs))]
            for name, (a, b) in zip(names, pairs, strict=True):
                lines.append(f"  const {v} {name} = fb_pair{distance}_{v}({a}, {b});")
        sums += names
    halves = ", ".join(f"fb_pair2_{v}({sums[j]}, {sums[j + 2]})" for j in range(2))
    return [*lines, f"  *({v}*)(sums + {first // (lanes // 4) * lanes}) = fb_pair1_{v}({halves});"]


def tile(unit: Unit, lanes: int, rows: int, vectors: int, last: int) -> str:
    """Name of the function for `rows` by `vectors` beside a panel, `last` lanes of the last vector."""
    left = [f"a[{r} * {ROW} + p]" for r in range(rows)]
    zeros = _zeros(rows, vectors)
    return _by_panel(unit, "tile", lanes, vectors, last, left, row="b + p * pitch", zeros=zeros)


def pixels(unit: Unit, lanes: int, rows: int, vectors: int, last: int, columns: int) -> str:
    """Name of the function for `rows` pixels by `vectors` of channels; panels have `columns`."""
    starts = range(0, rows, 3)
    left = [f"a{r - r % 3}{('[0]', '[apart]', '[2 * apart]')[r % 3]}" for r in range(rows)]
    places = ", ".join(f"*a{r} = a + at[h] + {r} * apart" for r in starts)
    moves = " ".join(f"a{r}++;" for r in starts)
    v, whole = unit.vector("f32", lanes), [lanes] * (vectors - 1) + [last]
    biases = [f"z{j} = bias ? {_read(v, lanes, n, f'bias + {lanes * j}')} : {v}{{}}" for j, n in enumerate(whole)]
    zeros = ", ".join(f"s{r}_{j} = z{j}" for r in range(rows) for j in range(vectors))
    texts = {"starts": ", ".join(biases), "zeros": zeros, "places": places, "moves": moves}
    return _by_panel(unit, "pixels", lanes, vectors, last, left, row="b", columns=columns, of=f"of{columns}", **texts)


def _by_panel(
    unit: Unit, kind: str, lanes: int, vectors: int, last: int, left: Sequence[str], row: str, **more: object
) -> str:
    """Name of a function of sums of numbers of `left` times a panel's row, of which `last` lanes of the last vector."""
    v, rows = unit.vector("f32", lanes), len(left)
    name = f"fb_{kind}_{v}_{rows}x{(vectors - 1) * lanes + last}{more.get('of', '')}"
    if name in unit.helpers:
        return name
    text, indent = _BY_PANEL[kind]
    sums = ["".join(f" s{r}_{j} += x{r} * y{j};" for j in range(vectors)) for r in range(rows)]
    more |= {"name": name, "v": v, "stores": _stores(v, lanes, rows, vectors, last, kind == "pixels")}
    unit.helpers[name] = text.format(
        panel=", ".join(f"y{j} = *(const {v}u*)({row} + {lanes * j})" for j in range(vectors)),
        products="\n".join(f"{indent}const {v} x{r} = {v}_of({left[r]});{sums[r]}" for r in range(rows)),
        **more,
    )
    return name


def _zeros(rows: int, columns: int) -> str:
    """The sums of a tile, all zero."""
    return ", ".join(f"s{r}_{j} = {{}}" for r in range(rows) for j in range(columns))


def _read(v: str, lanes: int, count: int, place: str) -> str:
    """A vector, or its first lanes and zeros."""
    return f"*(const {v}u*)({place})" if count == lanes else f"{v}_load({place}, {count})"


def _stores(v: str, lanes: int, rows: int, vectors: int, last: int, ends: bool) -> str:
    """Sums s0_0, s0_1... are stored, or added to what is there; before that they may have what `ends` them."""
    counts = [lanes] * (vectors - 1) + [last]
    places = [(f"s{r}_{j}", f"{r} * ldc + {lanes * j}", counts[j]) for r in range(rows) for j in range(vectors)]
    steps = {"!first": "{s} += {c};"}
    if ends:
        steps |= {"other": "{s} += {other};", "low > -__builtin_inff()": "{s} = lowest > {s} ? lowest : {s};"}
        steps |= {"high < __builtin_inff()": "{s} = highest < {s} ? highest : {s};"}
    lines = [f"  const {v} lowest = {v}_of(low), highest = {v}_of(high);"] if ends else []
    for condition, step in steps.items():
        lines.append(f"  if ({condition}) {{")
        for s, at, n in places:
            reads = {name: _read(v, lanes, n, f"{name} + {at}") for name in ("c", "other")}
            lines.append(f"    {step.format(s=s, **reads)}")
        lines.append("  }")
    for s, at, n in places:
        lines.append(f"  *({v}u*)(c + {at}) = {s};" if n == lanes else f"  {v}_store(c + {at}, {s}, {n});")
    return "\n".join(lines)


def panels(unit: Unit, lanes: int, floats: int, turned: bool) -> str:
    """Name of the template that makes panels; their memory is `fb_panels`."""
    reading(unit, lanes)
    v = unit.vector("f32", lanes)
    unit.helpers.setdefault(f"turn_{v}", transpose_helper(v, "float", lanes))
    unit.helpers.setdefault(f"fb_panel_{v}", _PANEL.format(v=v, w=lanes, both=2 * lanes, floats=floats))
    return f"fb_{'turned' if turned else 'copied'}_{v}"
