"""Products of 8-bit integers as C++, exact for all values: one instruction multiplies several and adds them to sums of
32 bits.

Where the processor has VNNI these are four, of bytes without a sign and with one; signed bytes are raised by 128, and
sums start from what that adds, which lies in front of a panel. Elsewhere both factors are widened to 16 bits, of which
an instruction takes two. In float32 it is one. Panels of the weight (`pack_int8`) pass by tiles of rows, which a thread
widens or raises into a copy of its own. One driver takes all shapes of a unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firebrick.errors import LoweringError
from firebrick.ir.index.number import as_int
from firebrick.ir.loops.program import Extern, Ref

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firebrick.ir.index.expr import Expr
    from firebrick.targets.cpu.unit_writer import Unit

OP = "firebrick::int8_product.out"

_VECTORS = 2
"""Of a panel."""
INT8_COLUMNS = {64: 16 * _VECTORS, 32: 8 * _VECTORS}
"""Bytes of a vector -> columns of a panel; other machines have no instruction for it."""
_ROWS = {64: 14, 32: 6}
"""Bytes of a vector -> rows of a tile whose sums, with a panel's row and a number, fill the registers."""
_PIECE, _GAP = 2048, 64
"""Bytes of a row before the next tile, so that a tile's rows stay in the first-level cache, and what keeps rows from
the same lines of it."""
_SERIAL = 1 << 19
"""Multiplications up to which one thread does all."""

_INSTRUCTIONS = {
    32: ("pmaddwd256(a, b)", "pmov{}xbw256((fb_chars)x)"),
    64: ("pmaddwd512_mask(a, b, i32x16{}, (uint16_t)-1)", "pmov{}xbw512_mask((fb_chars)x, i16x32{{}}, (uint32_t)-1)"),
}
"""Bytes of a vector -> sums of two products of 16 bits, and bytes widened, as GCC calls them."""

VNNI = 4
"""Products an instruction has with VNNI; without it 2."""

_TILE = """\
static __attribute__((noinline)) void fb_int8_tile{rows}(const {e}* a, int64_t row, const int8_t* b, int64_t steps,
    int32_t* c, int64_t ldc, bool first, const int8_t* start) {{
  {v} {zeros};
  if (start) {{
{starts}
  }}
  for (int64_t p = 0; p < steps; p++, a += {depth}, b += {bytes}) {{
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
"""Rows by a panel: `steps` of products. The numbers of a row are `row` apart."""

_PAIRS = """\
#ifdef __clang__
static inline {h} fb_wide({s} x) {{ return __builtin_convertvector(x, {h}); }}
static inline {h} fb_wide({u} x) {{ return __builtin_convertvector(x, {h}); }}
static inline {v} fb_multiply({h} a, {h} b) {{ return __builtin_ia32_pmaddwd{bits}(a, b); }}
#else
typedef char fb_chars __attribute__((vector_size({w})));
static inline {h} fb_wide({s} x) {{ return ({h})__builtin_ia32_{signed}; }}
static inline {h} fb_wide({u} x) {{ return ({h})__builtin_ia32_{unsigned}; }}
static inline {v} fb_multiply({h} a, {h} b) {{ return ({v})__builtin_ia32_{multiply}; }}
#endif
static inline {h} fb_widen(const int8_t* p) {{ return fb_wide(*(const {s}u*)p); }}
static inline {h} fb_widen(const uint8_t* p) {{ return fb_wide(*(const {u}u*)p); }}
static inline int16_t fb_number(int16_t x) {{ return x; }}
static inline {h} fb_panel(const int8_t* p) {{ return fb_widen(p); }}
static inline {v} fb_add({v} c, {h} a, {h} b) {{ return c + fb_multiply(a, b); }}
"""
_QUADS = """\
static inline {u} fb_widen(const int8_t* p) {{ return *(const {u}u*)p ^ {u}_of(128); }}
static inline {u} fb_widen(const uint8_t* p) {{ return *(const {u}u*)p; }}
static inline uint8_t fb_number(int8_t x) {{ return x ^ 128; }}
static inline uint8_t fb_number(uint8_t x) {{ return x; }}
static inline {h} fb_panel(const int8_t* p) {{ return *(const {h}u*)p; }}
static inline {v} fb_add({v} c, {h} a, {h} b) {{
  asm("vpdpbusd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
}}
"""
"""How rows are copied, and what one instruction adds up."""

_DRIVER = """\
static inline {h} fb_repeat(const {e}* p) {{
  int32_t several;
  __builtin_memcpy(&several, p, 4);
  return ({h}){v}_of(several);
}}
{tiles}
struct fb_int8_shape {{ int64_t rows, inner, outer, x_stride, out_stride; bool by_rows; }};
template <typename X> static __attribute__((noinline)) void fb_int8(const fb_int8_shape& s, const X* x,
    const int8_t* w, int32_t* out, int64_t begin, int64_t end) {{
  typedef void (*tile)(const {e}*, int64_t, const int8_t*, int64_t, int32_t*, int64_t, bool, const int8_t*);
  static const tile heights[] = {{nullptr, {names}}};
  const bool raised = {head} && X(-1) < X(0);
  const int64_t tiles = (s.rows - 1) / {most} + 1, panel = ((s.inner - 1) / {depth} + 1 + {head}) * {bytes};
  const int64_t from = s.by_rows ? 0 : begin, to = s.by_rows ? (s.outer - 1) / {columns} + 1 : end;
  const int64_t piece = s.inner < {piece} ? s.inner : {piece}, row = (piece + {w}) / {w} * {w} + {gap};
  const int64_t part = {cache} / (piece * {columns}), block = part > 1 ? part : 1;
  {e}* const copy = ({e}*)__builtin_alloca_with_align(row * {most} * sizeof({e}), 512);
  __attribute__((aligned(64))) int32_t rest[{most} * {columns}];
  for (int64_t n0 = from; n0 < to; n0 += block)
    for (int64_t k = 0; k < s.inner; k += {piece})
      for (int64_t t = s.by_rows ? begin : 0; t < (s.by_rows ? end : tiles); t++) {{
        const int64_t r0 = s.rows * t / tiles, count = s.rows * (t + 1) / tiles - r0;
        const int64_t some = s.inner - k < {piece} ? s.inner - k : {piece};
        for (int64_t i = 0; i < count; i++) {{
          const X* const p = x + (r0 + i) * s.x_stride + k;
          {e}* const its = copy + i * row;
          int64_t j = 0;
          for (; j + {w} <= some; j += {w}) *({c}*)(its + j) = fb_widen(p + j);
          for (; j < some; j++) its[j] = fb_number(p[j]);
          for (; j % {depth}; j++) its[j] = 0;
        }}
        for (int64_t n = n0; n < (to - n0 < block ? to : n0 + block); n++) {{
          const int64_t left = s.outer - n * {columns};
          int32_t* const c = out + r0 * s.out_stride + n * {columns};
          const int8_t* const b = w + n * panel + ({head} + k / {depth}) * {bytes};
          const int8_t* const start = raised && k == 0 ? w + n * panel : nullptr;
          if (left >= {columns}) {{
            heights[count](copy, row, b, (some - 1) / {depth} + 1, c, s.out_stride, k == 0, start);
            continue;
          }}
          heights[count](copy, row, b, (some - 1) / {depth} + 1, rest, {columns}, true, start);
          for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < left; j++)
              c[i * s.out_stride + j] = rest[i * {columns} + j] + (k ? c[i * s.out_stride + j] : 0);
        }}
      }}
}}
"""

_KERNEL = """\
static fb_int8_shape {name}_shape(const int64_t* sizes) {{
  const int64_t rows = {rows}, groups = {groups}, tiles = (rows - 1) / {most} + 1;
  return {{rows, {inner}, {outer}, {x_stride}, {out_stride}, groups < {twice} && tiles > groups}};
}}
static void {name}_part(void* const* args, const int64_t* sizes, int64_t begin, int64_t end) {{
  fb_int8({name}_shape(sizes), (const {type}*)args[0] + {x}, (const int8_t*)args[1] + {weight}, (int32_t*)args[2],
      begin, end);
}}
extern "C" void {name}(void* const* args, const int64_t* sizes) {{
  const fb_int8_shape s = {name}_shape(sizes);
  const int64_t count = s.by_rows ? (s.rows - 1) / {most} + 1 : {groups};
  if (s.rows <= 0) return;
  if (s.rows * {products} <= {serial}) {name}_part(args, sizes, 0, count);
  else fb_parallel({name}_part, args, sizes, count, s.by_rows ? 1 : {pieces});
}}
"""
"""Threads share out panels, or rows where these are more."""

_PIECES, _PANELS = 4, 8
"""Most pieces of a thread's panels, and how many panels one has at least."""


@dataclass(frozen=True, slots=True)
class Int8Product:
    """One shape of a product, and where its factors begin.

    rows: None where each call gives their number. depth: products of an instruction, for which the weight is packed.
    """

    rows: int | None
    inner: int
    outer: int
    x: tuple[int, int]
    weight: int
    out_stride: int
    depth: int
    type: str

    @staticmethod
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[Int8Product, tuple[str, ...], tuple[Expr, ...]]:
        """The shape of a call, the names of its buffers in the order of the kernel's arguments, and sizes that vary."""
        x, packed, outer = call.args
        (out,) = call.outs
        if not (isinstance(x, Ref) and isinstance(packed, Ref)) or out is None:
            raise LoweringError(f"{call.op} has arguments of another kind than its kernel")
        rows = None if x.shape[0].terms else as_int(x.shape[0])
        place = (as_int(x.offset), as_int(x.strides[0]))
        sizes = (as_int(x.shape[1]), int(outer), place, as_int(packed.offset), as_int(buffers[out].strides[0]))  # type: ignore[call-overload]
        made = Int8Product(
            rows, *sizes, as_int(packed.shape[3]), f"{'u' if buffers[x.buffer].dtype == 'u8' else ''}int8_t"
        )
        return made, (x.buffer, packed.buffer, out), () if made.rows is not None else (x.shape[0],)

    @property
    def kind(self) -> str:
        """A word for the kernel's name."""
        return f"int8_{'n' if self.rows is None else self.rows}x{self.inner}x{self.outer}"

    def shares(self, unit: Unit) -> str:
        """What kernels have in common that take the same tiles."""
        del unit
        return f"int8 {self.depth}"

    def text(self, unit: Unit, name: str) -> str:
        """The kernel, less what `unit` puts before it."""
        lanes, most = unit.target.vector_bytes // 4, _ROWS[unit.target.vector_bytes]
        columns, threads = _VECTORS * lanes, unit.target.threads
        groups = -(-self.outer // columns)
        if "fb_int8" not in unit.helpers:
            unit.helpers["fb_int8"] = _driver(unit, lanes, most, self.depth)
        return _KERNEL.format(
            name=name,
            rows="sizes[0]" if self.rows is None else self.rows,
            inner=self.inner,
            outer=self.outer,
            x_stride=self.x[1],
            out_stride=self.out_stride,
            type=self.type,
            x=self.x[0],
            weight=self.weight,
            groups=groups,
            most=most,
            twice=2 * threads,
            products=self.inner * self.outer,
            serial=_SERIAL,
            pieces=max(1, min(_PIECES, groups // (_PANELS * threads))),
        )


def _driver(unit: Unit, lanes: int, most: int, depth: int) -> str:
    """What all products of a unit have in common."""
    quads, columns, nbytes = depth == VNNI, _VECTORS * lanes, 4 // depth
    lane = "i8" if quads else "i16"
    names = {
        "v": unit.vector("i32", lanes),
        "h": unit.vector(lane, depth * lanes),
        "e": "uint8_t" if quads else "int16_t",
    }
    s, u = (unit.vector(lane, depth * lanes) for lane in ("i8", "u8"))
    if quads:
        steps = _QUADS.format(**names, u=u)
    else:
        multiply, widen = _INSTRUCTIONS[unit.target.vector_bytes]
        instructions = {"signed": widen.format("s"), "unsigned": widen.format("z"), "multiply": multiply}
        steps = _PAIRS.format(**names, **instructions, s=s, u=u, w=depth * lanes, bits=32 * lanes)
    sizes = {"depth": depth, "bytes": depth * columns}
    return steps + _DRIVER.format(
        **names,
        **sizes,
        c=u if quads else names["h"],
        tiles="".join(_tile(rows, lanes, {**names, **sizes}) for rows in range(1, most + 1)),
        names=", ".join(f"fb_int8_tile{rows}" for rows in range(1, most + 1)),
        most=most,
        columns=columns,
        head=int(quads),
        piece=_PIECE // nbytes,
        gap=_GAP // nbytes,
        w=depth * lanes,
        cache=unit.target.cache // 2,
    )


def _tile(rows: int, lanes: int, names: Mapping[str, Any]) -> str:
    sums, depth, v = [(r, n) for r in range(rows) for n in range(_VECTORS)], names["depth"], names["v"]
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
        panel=", ".join(f"w{n} = fb_panel(b + {depth * n * lanes})" for n in range(_VECTORS)),
        products="\n".join(products),
        sums="\n".join(f"    s{r}_{n} += *(const {v}u*)(c + {r} * ldc + {n * lanes});" for r, n in sums),
        stores="\n".join(f"  *({v}u*)(c + {r} * ldc + {n * lanes}) = s{r}_{n};" for r, n in sums),
    )
