"""Matmuls by constant weights as C++: tiles of sums in registers, blocks of the weight in cache, no copy of it kept.

The blocking is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 34:3,
2008). There are two forms:

- A weight whose rows lie along the sum (nn.Linear) is read where it is: sums are vectors along the rows of both
  factors (`fb_dot`). Adding up their lanes costs as much as 50 products, so short sums of many
  rows take the second form, and with vectors of 32 bytes all sums of many rows.
- Else panels of columns are made on the way (`fb_tile`), each once a call and thread, or read in place by few rows.

Calls name the form ("dots", "panels"), or leave it to what is said above ("own"). In a third form, "ahead", a weight
lies in panels, as `pack_convolution` makes them.

A sum's order depends on the shapes alone, not on threads, and is kept short, which bounds its rounding error: lanes, or
chains of `CHAIN` products. Scale, bias, what is added and the activation are applied while results are in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from firebrick.errors import LoweringError
from firebrick.ir.index.expr import Expr, as_int
from firebrick.ir.loops.program import Extern, Ref
from firebrick.targets.cpu.epilogue import finish
from firebrick.targets.cpu.tiles import ROW, dot, panels, tile
from firebrick.targets.cpu.unit_writer import Unit

Points = tuple[str, str, list[str], list[str]]

OP = "firebrick::linear.out"

REGISTERS = {64: 32, 32: 16, 16: 32}
"""Bytes of a vector -> vector registers of such machines."""
SERIAL = 1 << 18
"""Multiplications up to which one thread does all."""

_DOT_PIECE, _DOT_PIECE_FEW = 1024, 2048
"""Products of a sum that are taken before the next rows: what a tile reads of the left factor stays in cache."""
_DOT_COLUMNS = 64
"""Rows of the weight that stay in cache while the rows of the left factor pass by."""
_FEW = 3
"""Tiles that are so few that they pass by each few rows of the weight."""
_SHORT, _MANY = 256, 32
"""Products below which, and rows from which on, panels are faster than dot products."""
_MANY_SMALL = 64
"""Rows from which on panels are faster with vectors of 32 bytes: dot products would be of three rows at a time, which
read the weight from the second-level cache faster than that gives it."""
_LEAST = 16
"""Products below which lanes would stay empty; panels round a product and its sum at once, as eager mode does."""

_PANEL = 256
"""Products of a panel: it stays in the first-level cache, beside a tile's rows of the left factor."""
PIECE, CHAIN = 512, 128
"""Products in one chain of additions: of convolutions, and here."""
_IN_PLACE = 8
"""Products of a piece where a panel is not copied: rows of the weight are read side by side."""
MOST_ROWS = 14

_PIECES, _PIECE_COLUMNS = 4, 128
"""Most pieces of a thread's columns, and how many columns one has at least."""
PLANS = """\
struct fb_parts { int64_t rows, columns; };
static constexpr fb_parts fb_grid(int64_t rows, int64_t columns, int64_t threads, double tile, double row,
    double column) {
  fb_parts best = {1, 1};
  double least = -1;
  for (int64_t n = 1; n <= rows && n <= threads; n++) {
    const int64_t m = columns < threads / n ? columns : threads / n;
    const double high = (rows - 1) / n + 1, wide = (columns - 1) / m + 1;
    const double cost = high * wide * tile + high * row + wide * column;
    if (least < 0 || cost < least) best = {n, m}, least = cost;
  }
  return best;
}
static constexpr int64_t fb_even(int64_t total, int64_t most, int64_t multiple) {
  const int64_t pieces = (total - 1) / most + 1;
  return ((total - 1) / (pieces * multiple) + 1) * multiple;
}
"""
"""The parts of rows and of columns, one a thread, of which the largest takes the least time, by the costs of a tile and
of what a row and a column of tiles bring in: a core multiplies a vector in about the time in which a word comes from
the cache that all share. And the size of equal pieces of at most so many products."""
_DRIVER = """\
template <typename W> using fb_{form}_tile = void (*)({types});
template <typename W> struct fb_{form}_shape {{
  int64_t rows, inner, outer, x_stride, k_stride, n_stride, out_stride, other_stride, most, columns, batch, steps[3];
  const fb_{form}_tile<W> *whole, *last;
  void (*pack)(const W*, int64_t, int64_t, int64_t, float*, int64_t, int64_t);
  void (*finish)(float*, int64_t, const float*, const float*, const float*, int64_t, int64_t, int64_t);
  bool activates;
  int64_t tiles, piece, block, row, copied, slot, ahead, step, pitch, row_parts, column_parts, pieces;
}};
template <typename W> static constexpr fb_{form}_shape<W> fb_plan_{form}(fb_{form}_shape<W> s, int64_t threads) {{
  s.tiles = (s.rows - 1) / s.most + 1;
  const int64_t groups = (s.outer - 1) / s.columns + 1, tallest = s.rows < s.most ? s.rows : s.most;
{plan}
  const bool alone = s.batch * s.rows * s.inner * s.outer <= {serial};
  const double height = (double)s.rows / s.tiles;
  const fb_parts p = fb_grid(s.tiles, groups, alone || s.batch > 1 ? 1 : threads, height * s.columns, {w} * height,
      {w} * s.columns);
  const int64_t most = s.outer / ({piece_columns} * p.columns), some = most < 1 ? 1 : most < {pieces} ? most : {pieces};
  s.row_parts = p.rows, s.column_parts = p.columns * some < groups ? p.columns * some : groups;
  s.pieces = alone ? 0 : some;
  return s;
}}
template <typename W> static __attribute__((noinline)) void fb_by_{form}(const fb_{form}_shape<W>& s, const W* lefts,
    const W* weights, const float* scale, const float* bias, const float* other, float* results, int64_t begin,
    int64_t end) {{
  const int64_t height = s.rows / s.tiles, taller = s.rows % s.tiles, groups = (s.outer - 1) / s.columns + 1;
  const bool finishes = s.activates || scale || bias || other;
  float* const copied = (float*)__builtin_alloca_with_align(s.copied * 4 + 4, 512);
  for (int64_t i = begin; i < end; i++) {{
  const int64_t y = i / s.column_parts % s.row_parts, z = i % s.column_parts, b = i / s.column_parts / s.row_parts;
  const W *const x = lefts + b * s.steps[0], *const w = weights + b * s.steps[1];
  float* const out = results + b * s.steps[2];
  const int64_t row_from = s.tiles * y / s.row_parts, row_to = s.tiles * (y + 1) / s.row_parts;
  const int64_t from = groups * z / s.column_parts * s.columns, until = groups * (z + 1) / s.column_parts * s.columns;
  const int64_t to = until < s.outer ? until : s.outer;
{loops}
      const int64_t part = s.inner - k < s.piece ? s.inner - k : s.piece;
      const int64_t n1 = to - n0 < s.block ? to : n0 + s.block;
{pack}
      for (int64_t t = row_from; t < row_to; t++) {{
        const int64_t tall = t < taller, count = height + tall, r = height * t + (tall ? t : taller);
        const W* const its_x = x + r * s.x_stride + k;
        const float* a = (const float*)its_x;
        if (s.copied) {{
          float* const to_row = copied + t * s.slot;
          if (s.slot == 0 || n0 == from)
            for (int64_t i = 0; i < count; i++) {{
              const W* const row = its_x + i * s.x_stride;
              float* const its = to_row + i * s.row;
              int64_t p = 0;
#pragma GCC unroll 4
              for (; p + {w} <= part; p += {w}) {{
                *({v}u*)(its + p) = fb_read(row + p);
                __builtin_prefetch(row + count * s.x_stride + p, 0, 3);
              }}
              if (p < part) *({v}u*)(its + p) = fb_read(row + p, part - p);
            }}
          a = to_row;
        }}
        for (int64_t n = n0; n < n1; n += s.columns) {{
          float* const c = out + r * s.out_stride + n;
          const int64_t left = n1 - n < s.columns ? n1 - n : s.columns;
          const auto tile = (left == s.columns ? s.whole : s.last)[count];
{calls}
        }}
        if (finishes && k + part == s.inner)
          s.finish(out + r * s.out_stride + n0, s.out_stride, scale ? scale + n0 : scale, bias ? bias + n0 : bias,
              other ? other + r * s.other_stride + n0 : other, s.other_stride, count, n1 - n0);
      }}
    }}
  }}
  }}
}}
"""
"""Matmuls of a unit in one form, which differ by numbers and by the tiles that they take, by their rows: of
`rows / tiles` rows or one more, of `columns` or what is left, in sums of `piece` products. A compiler computes the plan
of a shape that it knows. Threads share out a grid of parts, those of the same rows side by side, or the products of a
batch. row: floats between rows of the left factor, which are copied (`copied` floats) where they would lie on the same
lines of the cache, by tiles (the next one's rows are fetched) or (slot: floats of one) all at once. ahead, step: what
is fetched meanwhile."""

_DOTS = """\
          const W* const next = w + (n1 + (((t - row_from) * s.ahead + (n - n0)) * s.step >> 16)) * s.n_stride + k;
          tile(a, s.row, w + n * s.n_stride + k, s.n_stride, part, next, s.pitch, c, s.out_stride, left, k == 0);"""

_PACK = """\
      const int64_t wide = 4 * s.columns, chains = ((n1 - n0 - 1) / s.columns + 1) * ((part - 1) / {chain} + 1);
      const bool last = k + part == s.inner, turned = s.n_stride != 1;
      const bool more = (sizeof(W) == 4 || turned) && !(last && n1 == to);
      const W* const behind = w + (last ? 0 : k + part) * s.k_stride + (last ? n1 : n0) * s.n_stride;
      for (int64_t n = n0; s.pack && n < n1; n += wide)
        s.pack(w + k * s.k_stride + n * s.n_stride, s.n_stride != 1 ? s.n_stride : s.k_stride,
            n1 - n < wide ? n1 - n : wide, part, fb_panels + (n - n0) * s.piece, s.columns, s.piece);"""

_CHAINS = """\
          const float* const b =
              s.pack ? fb_panels + (n - n0) * s.piece : (const float*)(w + k * s.k_stride + n * s.n_stride);
          const int64_t row = (t - row_from) * chains + (n - n0) / s.columns * ((part - 1) / {chain} + 1);
          const float* next = b;
          if (!s.pack && turned)
            next = (k + part < s.inner ? b + part * s.columns : (const float*)(w + (n + s.block) * s.n_stride))
                + (t - row_from) * ((s.columns / 16 * part - 1) / (row_to - row_from) + 1) * 16;
          else if (!s.pack) next += s.columns;
          else if (more && turned) next = (const float*)(behind + (n - n0 + (t - row_from) % s.columns) * s.n_stride);
          else if (more && s.ahead != s.k_stride)
            next = (const float*)(behind + n - n0 + (t - row_from) % ((s.columns + 15) / 16) * 16);
          else if (more && row < part) next = (const float*)(behind + row * s.k_stride);
          for (int64_t q = 0; q < part; q += {chain}, next += s.ahead) {{
            const int64_t some = part - q < {chain} ? part - q : {chain};
            tile(a + q, b + q * s.pitch, s.pitch, some, next, s.step, c, s.out_stride, k + q == 0);
          }}"""

_BY_PRODUCTS = "    for (int64_t k = 0; k < s.inner; k += s.piece) {"
_BY_BLOCKS = "    for (int64_t n0 = from; n0 < to; n0 += s.block) {"
_LOOPS = {"dots": f"{_BY_PRODUCTS[2:]}\n{_BY_BLOCKS}", "panels": f"{_BY_BLOCKS[2:]}\n{_BY_PRODUCTS}"}
"""Form -> its outer loops: sums of a block of panels are in cache until they are done."""

POINTS = {
    "dots": "const float*, int64_t, const W*, int64_t, int64_t, const W*, int64_t, float*, int64_t, int64_t, bool",
    "panels": "const float*, const float*, int64_t, int64_t, const float*, int64_t, float*, int64_t, bool",
}
"""Form -> types of the arguments of its tiles."""

_PLAN_DOTS = """\
  const bool few = s.tiles <= {few}, moved = sizeof(W) == 2 || (s.rows > 2 && s.x_stride % 512 == 0);
  s.piece = fb_even(s.inner, few ? {piece_few} : {piece}, {w});
  s.block = few ? s.columns : {block};
  s.row = moved ? ((s.piece + 15) / 16 | 1) * 16 : s.x_stride;
  s.slot = moved && few ? tallest * s.row : 0;
  s.copied = moved ? tallest * s.row * (few ? s.tiles : 1) : 0;
  s.ahead = few ? 0 : s.block, s.step = few ? 0 : 65536 / s.tiles, s.pitch = few ? s.columns : 1;"""
"""Each call of a tile fetches its share of the next block's rows, or all of them."""

_PLAN_PANELS = """\
  const bool turned = s.n_stride != 1, packed = turned && s.k_stride != 1;
  const bool in_place = !turned && s.tiles == 1 && s.outer % {w} == 0 && sizeof(W) == 4;
  s.piece = fb_even(s.inner, in_place ? {piece_in_place} : {piece}, 1);
  const int64_t several = {floats} / (s.columns * s.piece), block = s.columns * (several > 1 ? several : 1);
  const bool lines = turned || in_place || s.tiles * (block / s.columns) * ((s.piece - 1) / {chain} + 1) < s.piece;
  s.block = in_place ? groups * s.columns : block;
  s.row = {row}, s.copied = tallest * {row}, s.slot = 0;
  s.ahead = lines ? {chain} * s.k_stride : s.k_stride, s.step = lines ? s.k_stride : (block - 1) / {chain} + 1;
  s.pitch = in_place ? s.k_stride : s.columns;
  if (packed) s.step = s.tiles * 16 < s.columns ? s.columns / s.tiles / 16 * 16 : 16, s.ahead = {chain} * s.step;
  if (in_place || packed) s.pack = nullptr;"""
"""Of the panels' next piece each tile fetches its share of what is packed ahead, or a row of a turned weight, or each
chain a row of all panels or, with fewer chains than rows, each tile a line of all rows."""

_KERNEL = """\
static constexpr fb_{form}_tile<{type}> {name}_whole[] = {{{whole}}}, {name}_other[] = {{{other}}};
static constexpr fb_{form}_shape<{type}> {name}_shape(const int64_t* sizes) {{
  const int64_t rows = {rows};
  return fb_plan_{form}<{type}>({{rows, {numbers}, {tiles}, {pack}, {finish}, {activates}}}, {threads});
}}
static void {name}_part(void* const* args, const int64_t* s, int64_t begin, int64_t end) {{
  fb_by_{form}(*(const fb_{form}_shape<{type}>*)s, {given}, begin, end);
}}
static void {name}_all(void* const* args, const int64_t* sizes) {{
  {constant} auto s = {name}_shape({given_sizes});
  fb_parallel({name}_part, args, (const int64_t*)&s, s.batch * s.row_parts * s.column_parts, s.pieces);
}}
"""


@dataclass(frozen=True, slots=True)
class Linear:
    """One shape of matmul, and the buffers of one call of it.

    Offsets and strides in elements. weight: offset, strides [inner, outer], one of which is 1, or in panels those of
    rows and, times its columns, of panels. scale, bias: offsets; other: offset and stride of what is added; None where
    there are none. form: "dots", "panels", "ahead", or "own" where the machine decides. half: the factors are bf16,
    all else f32. batch: how many products, and elements from one to the next of x, weight and out. rows: 0 where each
    call gives their number.
    """

    rows: int
    inner: int
    outer: int
    x: tuple[int, int]
    weight: tuple[int, int, int]
    scale: int | None
    bias: int | None
    other: tuple[int, int] | None
    out_stride: int
    attr: str
    scalars: tuple[float, ...]
    form: str
    half: bool = False
    batch: tuple[int, int, int, int] = (1, 0, 0, 0)

    @staticmethod
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[Linear, tuple[str, ...], tuple[Expr, ...]]:
        """The shape of a call, the names of its buffers in the order of the kernel's arguments, and sizes that vary."""
        x, weight, scale, bias, other, attr, scalars, *forms = call.args
        (out,) = call.outs
        if not (isinstance(x, Ref) and isinstance(weight, Ref)) or out is None or as_int(x.strides[-1]) != 1:
            raise LoweringError(f"{call.op} has arguments of another kind than its kernel")
        inner, outer = map(as_int, weight.shape[-2:])
        strides = [as_int(s) if n > 1 else 1 for s, n in zip(weight.strides[-2:], (inner, outer), strict=True)]
        if forms[:1] == ["ahead"]:
            outer, strides = int(str(forms[1])), [outer, inner]
        elif 1 not in strides:
            raise LoweringError(f"{call.op} has a weight with gaps")
        varies = len(x.shape) == 2 and bool(x.shape[0].terms)
        rows, results = 0 if varies else as_int(x.shape[-2]), [as_int(n) for n in buffers[out].strides]
        steps = (as_int(x.strides[0]), as_int(weight.strides[0]), results[0])
        place, weights = (as_int(x.offset), as_int(x.strides[-2])), (as_int(weight.offset), strides[0], strides[1])
        scales, biases = (as_int(r.offset) if isinstance(r, Ref) else None for r in (scale, bias))
        added = (as_int(other.offset), as_int(other.strides[0])) if isinstance(other, Ref) else None
        form = str(forms[0]) if forms else "own"
        form = form if varies and forms else form_of(form, rows, inner, strides[0] == 1)
        batch = (as_int(x.shape[0]), *steps) if len(x.shape) > 2 else (1, 0, 0, 0)
        numbers: Any = scalars
        ends: Any = (str(attr), tuple(numbers), form, buffers[x.buffer].dtype == "bf16", batch)
        linear = Linear(rows, inner, outer, place, weights, scales, biases, added, results[-2], *ends)
        operands = [r.buffer for r in (x, weight, scale, bias, other) if isinstance(r, Ref)]
        return linear, (*operands, out), (x.shape[0],) if varies else ()

    @property
    def kind(self) -> str:
        """A word for the kernel's name."""
        return f"linear_{self.rows or 'n'}x{self.inner}x{self.outer}"

    def shares(self, unit: Unit) -> str:
        """What kernels have in common that take the same tiles."""
        return f"{'dots' if self.by_dots(unit) else 'panels'} of {self.type}"

    @property
    def type(self) -> str:
        """C++ type of the factors."""
        return "uint16_t" if self.half else "float"

    def text(self, unit: Unit, name: str) -> str:
        """The kernel, less what `unit` puts before it; of any number of rows both forms, of which a call takes one."""
        along = self.weight[1] == 1 and not (isinstance(self.inner, int) and self.inner < _LEAST)
        if self.rows:
            forms = ["dots" if self.by_dots(unit) else "panels"]
        elif not along or self.form == "panels":
            forms = ["panels"]
        else:
            both = self.form != "dots" and (self.inner < _SHORT or unit.target.vector_bytes == 32)
            forms = ["dots", "panels"] if both else ["dots"]
        call = f"{name}_{forms[-1]}_all(args, sizes)"
        if len(forms) > 1:
            least = _MANY if self.inner < _SHORT else _MANY_SMALL
            call = f"sizes[0] < {least} ? {name}_dots_all(args, sizes) : {call}"
        call = call if self.rows else f"if (sizes[0] > 0) {call}"
        texts = [self._form(unit, f"{name}_{form}", form) for form in forms]
        return "".join([*texts, f'extern "C" void {name}(void* const* args, const int64_t* sizes) {{\n  {call};\n}}\n'])

    def _form(self, unit: Unit, name: str, form: str) -> str:
        """The kernel in one form; the tiles that it takes are put into the unit."""
        lanes, offsets = max(unit.target.vector_bytes // 4, 4), (self.scale, self.bias, self.other and self.other[0])
        registers = REGISTERS.get(unit.target.vector_bytes, 16)
        pack, (tiles, columns, whole, other) = "nullptr", self._points(unit, lanes, registers, form)
        if form == "panels":
            makes = panels(unit, lanes, panel_floats(unit.target.cache), self.weight[2] != 1)
            pack = "nullptr" if self.form == "ahead" else f"{makes}<{self.type}>"
        self._driver(unit, form, lanes)
        done = "nullptr"
        if self.attr != "none" or offsets != (None, None, None):
            done = finish(unit, lanes, self.attr, self.scalars)
        strides = (self.x[1], *self.weight[1:], self.out_stride, self.other[1] if self.other else 0)
        numbers = ", ".join(map(str, (self.inner, self.outer, *strides, len(whole) - 1, columns, *self.batch)))
        texts = {"name": name, "form": form, "type": self.type, "pack": pack, "finish": done, "numbers": numbers}
        texts |= {"tiles": tiles.format(name), "whole": ", ".join(whole), "other": ", ".join(other)}
        known = ("static constexpr", "nullptr", self.rows) if self.rows else ("const", "sizes", "sizes[0]")
        work = {"activates": int(self.attr != "none"), "threads": unit.target.threads, "given": self._given()}
        return _KERNEL.format(**texts, **work, constant=known[0], given_sizes=known[1], rows=known[2])

    def _points(self, unit: Unit, lanes: int, registers: int, form: str) -> Points:
        """Which tiles a call takes and of how many columns, in C++, and two tables of tiles by their rows: of 8 columns
        and of 4, or of two or more vectors and of what is left of the columns, two vectors where they vary."""
        vectors = vectors_ahead(registers) if self.form == "ahead" else 2
        most = (registers - 1) // 5 if form == "dots" else min(MOST_ROWS, (registers - 1 - vectors) // vectors)
        heights, few = range(1, most + 1), self.rows and 9 * self.rows < registers
        if self.rows:
            tiles = -(-self.rows // most)
            heights = range(self.rows // tiles, -(-self.rows // tiles) + 1)

        def table(name: Callable[[int], str], taken: Container[int]) -> list[str]:
            return ["nullptr", *(name(n) if n in heights and n in taken else "nullptr" for n in range(1, most + 1))]

        if form == "dots":
            tail = isinstance(self.inner, int) and self.inner % lanes != 0
            dots = partial(dot, unit, lanes, tail=tail, scalar=self.type)
            wide = [n for n in heights if 9 * n < registers and (few or not self.rows)]
            both = table(partial(dots, columns=8), wide), table(partial(dots, columns=4), () if few else heights)
            taken = f"rows * 9 < {registers} ? {{0}}_whole : {{0}}_other"
            return f"{taken}, {taken}", f"rows * 9 < {registers} ? 8 : 4", *both
        left = self.outer % (vectors * lanes) if isinstance(self.outer, int) else (vectors - 2) * lanes
        last = {"vectors": -(-left // lanes), "last": (left - 1) % lanes + 1}
        whole = table(partial(tile, unit, lanes, vectors=vectors, last=lanes), () if left == self.outer else heights)
        other = table(partial(tile, unit, lanes, **last), heights if left else ())
        return "{0}_whole, {0}_other", str(vectors * lanes), whole, other

    def _driver(self, unit: Unit, form: str, lanes: int) -> None:
        """What all matmuls of a form have in common."""
        facts = {"w": lanes, "chain": CHAIN, "row": ROW}
        if form == "dots":
            facts |= {"few": _FEW, "piece_few": _DOT_PIECE_FEW, "piece": _DOT_PIECE, "block": _DOT_COLUMNS}
        else:
            facts |= {"piece_in_place": _IN_PLACE, "piece": _PANEL}
            facts |= {"floats": panel_floats(unit.target.cache)}
        plan, pack, calls = (text.format(**facts) for text in _TEXTS[form])
        fields = {"form": form, "types": POINTS[form], "v": unit.vector("f32", lanes), "w": lanes}
        fields |= {"serial": SERIAL, "pieces": _PIECES, "piece_columns": _PIECE_COLUMNS}
        unit.helpers.setdefault("fb_grid", PLANS)
        text = _DRIVER.format(**fields, loops=_LOOPS[form], plan=plan, pack=pack, calls=calls)
        unit.helpers.setdefault(f"fb_by_{form}", text)

    def _given(self) -> str:
        """The factors and what is added, as arguments of the driver, and the results."""
        places = iter(range(2, 5))
        operands = [f"(const {self.type}*)args[{k}] + {n}" for k, n in enumerate((self.x[0], self.weight[0]))]
        offsets = (self.scale, self.bias, self.other and self.other[0])
        operands += ["nullptr" if n is None else f"(const float*)args[{next(places)}] + {n}" for n in offsets]
        return ", ".join([*operands, f"(float*)args[{next(places, 5)}]"])

    def by_dots(self, unit: Unit) -> bool:
        """Whether sums are vectors along the rows of both factors on this machine."""
        return self.form == "dots" or (self.form == "own" and unit.target.vector_bytes != 32)


_TEXTS = {"dots": (_PLAN_DOTS, "", _DOTS), "panels": (_PLAN_PANELS, _PACK, _CHAINS)}
"""Form -> how it plans a shape, what it packs and what it calls for a tile."""


def grid(rows: int, columns: int, threads: int, costs: tuple[float, float, float]) -> tuple[int, int]:
    """What `fb_grid` gives. costs: of a tile, and of bringing in what a row and a column of tiles read."""

    def cost(parts: tuple[int, int]) -> float:
        high, wide = -(-rows // parts[0]), -(-columns // parts[1])
        return high * wide * costs[0] + high * costs[1] + wide * costs[2]

    return min(((n, min(columns, threads // n)) for n in range(1, min(rows, threads) + 1)), key=cost)


def form_of(form: Any, rows: int, inner: int, along: bool) -> str:
    """The form that is meant; dots need a weight whose rows lie along the sum."""
    if form == "own":
        if not along or inner < _LEAST or (inner < _SHORT and rows >= _MANY):
            return "panels"
        return "dots" if rows < _MANY_SMALL else "own"
    if form not in ("dots", "panels", "ahead") or (form == "dots" and not along):
        raise LoweringError(f"{OP} has no form {form} for this weight")
    return str(form)


def vectors_ahead(registers: int) -> int:
    """Vectors of a panel that is made ahead of time: six rows by four load ten times for 24 products, as many rows by
    two as there are registers for 16 times for 28."""
    return 4 if registers == REGISTERS[64] else 2


def panel_floats(cache: int) -> int:
    """Floats of panels that a thread makes at a time: half of what is its own of the second-level cache, where another
    thread of the core may have the other half."""
    return min(max(1 << (cache // 16).bit_length() - 1, 1 << 14), 1 << 17)
