"""Matmuls by constant weights as C++: tiles of sums in registers, blocks of the weight in cache, no copy of it kept.

The blocking is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 34:3,
2008). There are two forms:

- A weight whose rows lie along the sum (nn.Linear) is read where it is: sums are vectors along the rows of both
  factors (`fb_dot`). Adding up their lanes costs as much as 50 products, so short sums of many
  rows take the second form, and with vectors of 32 bytes all sums of many rows.
- Else panels of columns are made on the way (`fb_tile`), each once a call and thread, or read in place by few rows.

Calls name the form ("dots", "panels"), or leave it to what is said above ("own").

A sum's order depends on the shapes alone, not on threads, and is kept short, which bounds its rounding error: lanes, or
chains of `_CHAIN` products. Scale, bias, what is added and the activation are applied while results are in cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firebrick.errors import LoweringError
from firebrick.ir.index.number import as_int
from firebrick.ir.loops.program import Extern, Ref
from firebrick.targets.cpu.epilogue import finish
from firebrick.targets.cpu.tiles import ROW, dot, panels, tile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from firebrick.ir.index.expr import Expr
    from firebrick.targets.cpu.unit_writer import Unit

    Points = tuple[list[str], list[str]]
    Texts = tuple[str, str]
    Sizes = tuple[int, int, int]

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

_PANEL = 512
"""Products of a panel."""
PIECE, _CHAIN = 256, 128
"""Products in one chain of additions: of convolutions, and here."""
_IN_PLACE = 8
"""Products of a piece where a panel is not copied: rows of the weight are read side by side."""
MOST_ROWS = 14
_SMALL_PANEL = 256
"""The same with vectors of 32 bytes: such machines read the second-level cache with half as many bytes at a time, so
the panel is to stay in the first."""

_PIECES, _PIECE_COLUMNS = 4, 128
"""Most pieces of a thread's columns, and how many columns one has at least."""
_DRIVER = """\
template <typename W> struct fb_{form}_shape {{
  int64_t rows, inner, outer, x_stride, k_stride, n_stride, out_stride, other_stride;
  int64_t piece, block, columns, tiles, row_parts, column_parts, row, copied, slot, ahead, step, pitch;
  void (*pack)(const W*, int64_t, int64_t, int64_t, float*, int64_t, int64_t);
  void (*whole[2])({types}), (*last[2])({types});
  void (*finish)(float*, int64_t, const float*, const float*, const float*, int64_t, int64_t, int64_t);
}};
template <typename W> static __attribute__((noinline)) void fb_by_{form}(const fb_{form}_shape<W>& s, const W* x,
    const W* w, const float* scale, const float* bias, const float* other, float* out, int64_t begin, int64_t end) {{
  const int64_t height = s.rows / s.tiles, taller = s.rows % s.tiles, groups = (s.outer - 1) / s.columns + 1;
  float* const copied = (float*)__builtin_alloca_with_align(s.copied * 4 + 4, 512);
  for (int64_t i = begin; i < end; i++) {{
  const int64_t y = i / s.column_parts, z = i % s.column_parts;
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
              for (; p + {w} <= part; p += {w}) *({v}u*)(its + p) = fb_read(row + p);
              if (p < part) *({v}u*)(its + p) = fb_read(row + p, part - p);
            }}
          a = to_row;
        }}
        for (int64_t n = n0; n < n1; n += s.columns) {{
          float* const c = out + r * s.out_stride + n;
          const int64_t left = n1 - n < s.columns ? n1 - n : s.columns;
          const auto tile = (left == s.columns ? s.whole : s.last)[tall];
{calls}
        }}
        if (s.finish && k + part == s.inner)
          s.finish(out + r * s.out_stride + n0, s.out_stride, scale ? scale + n0 : scale, bias ? bias + n0 : bias,
              other ? other + r * s.other_stride + n0 : other, s.other_stride, count, n1 - n0);
      }}
    }}
  }}
  }}
}}
"""
"""Matmuls of a unit in one form, which differ by numbers and by the tiles that they take: of `rows / tiles` rows or one
more, of `columns` or what is left, in sums of `piece` products. Threads share out a grid of parts, those of the same
rows side by side. row: floats between rows of the left factor, which are
copied (`copied` floats) where they would lie on the same lines of the cache, by tiles or (slot: floats of one) all at
once. ahead, step: what is fetched meanwhile."""

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
          const float* const b = s.pack ? fb_panels + (n - n0) * s.piece : (const float*)(w + k * s.k_stride + n);
          const int64_t row = (t - row_from) * chains + (n - n0) / s.columns * ((part - 1) / {chain} + 1);
          const float* next = b;
          if (!s.pack) next += s.columns;
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

_KERNEL = """\
static const fb_{form}_shape<{type}> {name}_shape = {{{numbers}, {points}}};
static void {name}_part(void* const* args, const int64_t*, int64_t begin, int64_t end) {{
{call}
}}
extern "C" void {name}(void* const* args, const int64_t* sizes) {{
  {start};
}}
"""


_OF_ROWS = """\
static fb_{form}_shape<{type}> {name}_{form}(int64_t rows) {{
  typedef void (*tile)({types});
  static const tile whole[] = {{{whole}}}, last[] = {{{last}}};
  fb_{form}_shape<{type}> s = {{rows, {numbers}, 0, 0, {columns}}};
  s.tiles = (rows - 1) / {most} + 1;
  const int64_t height = rows / s.tiles, groups = {groups}, tallest = rows < {most} ? rows : {most};
  const bool many = rows > s.outer, by_rows = (many ? s.tiles : groups) < 2 * {threads} ? s.tiles > groups : many;
  s.row_parts = by_rows ? (s.tiles < {threads} ? s.tiles : {threads}) : 1;
  s.column_parts = by_rows ? 1 : groups < {parts} ? groups : {parts};
{plan}
  for (int i = 0; i < 2; i++) s.whole[i] = whole[height + i], s.last[i] = last[height + i];
  s.finish = {finish};
  return s;
}}
static void {name}_{form}_part(void* const* args, const int64_t* sizes, int64_t begin, int64_t end) {{
  fb_by_{form}({name}_{form}(sizes[0]), {given}, begin, end);
}}
static void {name}_{form}_all(void* const* args, const int64_t* sizes) {{
  const fb_{form}_shape<{type}> s = {name}_{form}(sizes[0]);
  const int64_t count = s.row_parts * s.column_parts;
  if (s.rows * {products} <= {serial}) {name}_{form}_part(args, sizes, 0, count);
  else fb_parallel({name}_{form}_part, args, sizes, count, {pieces});
}}
"""
"""A form for any number of rows, which is the first of the sizes: what `Linear` computes of it is computed here."""

_DOTS_OF_ROWS = """\
  const bool few = s.tiles <= {few}, moved = {half} || (rows > 2 && {collide});
  s.piece = few ? {piece_few} : {piece};
  s.block = few ? {columns} : {block};
  s.row = moved ? ((s.piece + 15) / 16 | 1) * 16 : s.x_stride;
  s.slot = moved && few ? tallest * s.row : 0;
  s.copied = moved ? tallest * s.row * (few ? s.tiles : 1) : 0;
  s.ahead = few ? 0 : s.block, s.step = few ? 0 : 65536 / s.tiles, s.pitch = few ? {columns} : 1;"""

_PANELS_OF_ROWS = """\
  const bool in_place = {whole_lines} && s.tiles == 1;
  s.piece = in_place ? {piece_in_place} : {piece};
  const int64_t panel = {columns} * s.piece, several = {columns} * ({floats} / panel > 1 ? {floats} / panel : 1);
  s.block = in_place ? groups * {columns} : several;
  s.row = {row}, s.copied = tallest * {row}, s.slot = 0;
  const bool lines = {turned} || in_place || s.tiles * (s.block / {columns}) * ((s.piece - 1) / {chain} + 1) < s.piece;
  s.ahead = {turned} || lines ? {chain_ahead} : s.k_stride;
  s.step = lines ? {chain_step} : (s.block - 1) / {chain} + 1;
  s.pitch = in_place ? s.k_stride : {columns};
  s.pack = in_place ? nullptr : {pack};"""


@dataclass(frozen=True, slots=True)
class Blocking:
    """What a shape's kernel tells the driver of its form.

    numbers: the first fields of its shape. pack: what makes panels. points: tiles of whole columns, and of what is
    left. count, pieces: parts that threads share out, and pieces of a thread's; 0 for one thread alone.
    """

    form: str
    numbers: tuple[int, ...]
    pack: str
    points: tuple[list[str], list[str]]
    count: int
    pieces: int


@dataclass(frozen=True, slots=True)
class Linear:
    """One shape of matmul, and the buffers of one call of it.

    Offsets and strides in elements. weight: offset, strides [inner, outer], one of which is 1. scale, bias: offsets;
    other: offset and stride of what is added; None where there are none. form: "dots", "panels", or "own" where the
    machine decides. half: the factors are bf16, all else f32. batch: how many products, and elements from one to the
    next of x, weight and out. rows: 0 where each call gives their number.
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
        if 1 not in strides:
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
        """The kernel, less what `unit` puts before it."""
        return self._kernel(unit, name, self.blocking(unit)) if self.rows else self._of_rows(unit, name)

    def blocking(self, unit: Unit) -> Blocking:
        """How the kernel of this shape goes about it; the tiles that it takes are put into the unit."""
        return (self._dots if self.by_dots(unit) else self._panels)(unit)

    def _of_rows(self, unit: Unit, name: str) -> str:
        """Both forms, and from how many rows on the second is taken."""
        along = self.weight[1] == 1 and self.inner >= _LEAST
        texts = [self._dots_of_rows(unit, name)] if along else []
        texts.append(self._panels_of_rows(unit, name))
        least = _MANY if self.inner < _SHORT else _MANY_SMALL
        if self.form == "dots" or (along and self.inner >= _SHORT and unit.target.vector_bytes != 32):
            least = 1 << 62
        call = f"{name}_panels_all(args, sizes);"
        if along and self.form != "panels":
            call = f"sizes[0] < INT64_C({least}) ? {name}_dots_all(args, sizes) : {call}"
        entry = f'extern "C" void {name}(void* const* args, const int64_t* sizes) {{\n  if (sizes[0] > 0) {call}\n}}\n'
        return "".join([*texts, entry])

    def _dots_of_rows(self, unit: Unit, name: str) -> str:
        lanes = max(unit.target.vector_bytes // 4, 4)
        most, columns = (REGISTERS.get(unit.target.vector_bytes, 16) - 1) // 5, 4
        tail = self.inner % lanes != 0
        whole = [dot(unit, lanes, n, columns, tail, self.type) for n in range(1, most + 1)]
        pieces = {"piece_few": _even(self.inner, _DOT_PIECE_FEW, lanes), "piece": _even(self.inner, _DOT_PIECE, lanes)}
        facts = {"few": _FEW, "half": int(self.half), "collide": int(self.x[1] % 512 == 0)}
        plan = _DOTS_OF_ROWS.format(**facts, **pieces, columns=columns, block=_DOT_COLUMNS)
        last = whole if self.outer % columns else []
        return self._form_of_rows(unit, name, "dots", columns, most, plan, (whole, last), ("", _DOTS))

    def _panels_of_rows(self, unit: Unit, name: str) -> str:
        lanes = max(unit.target.vector_bytes // 4, 4)
        most = min(MOST_ROWS, (REGISTERS.get(unit.target.vector_bytes, 16) - 3) // 2)
        columns, small = 2 * lanes, unit.target.vector_bytes == 32
        floats, (_, inner_stride, outer_stride) = panel_floats(unit.target.cache), self.weight
        turned = outer_stride != 1
        packing = panels(unit, lanes, floats, turned)
        lines = not turned and self.outer % lanes == 0 and not self.half
        facts = {"whole_lines": int(lines), "turned": int(turned), "columns": columns, "floats": floats, "row": ROW}
        pieces = {"piece_in_place": _even(self.inner, _IN_PLACE, 1), "chain": _CHAIN, "pack": f"{packing}<{self.type}>"}
        pieces["piece"] = _even(self.inner, _SMALL_PANEL if small else _PANEL, 1)
        step = 1 if turned else inner_stride
        plan = _PANELS_OF_ROWS.format(**facts, **pieces, chain_ahead=_CHAIN * step, chain_step=step)
        both = self._panel_points(unit, lanes, range(1, most + 1))
        texts = (_PACK.format(chain=_CHAIN), _CHAINS.format(chain=_CHAIN))
        return self._form_of_rows(unit, name, "panels", columns, most, plan, both, texts)

    def _form_of_rows(
        self, unit: Unit, name: str, form: str, columns: int, most: int, plan: str, points: Points, texts: Texts
    ) -> str:
        lanes, threads = max(unit.target.vector_bytes // 4, 4), unit.target.threads
        offsets = (self.scale, self.bias, self.other and self.other[0])
        self._driver(unit, form, lanes, texts)
        operands, results = self._given(("", ""))
        finishes = self.attr != "none" or offsets != (None, None, None)
        whole, last = (", ".join(["nullptr", *(pointers or ["nullptr"] * most), "nullptr"]) for pointers in points)
        strides = (self.x[1], *self.weight[1:], self.out_stride, self.other[1] if self.other else 0)
        names = {"form": form, "type": self.type, "types": POINTS[form].replace("W*", f"{self.type}*"), "name": name}
        tiles = {"whole": whole, "last": last, "columns": columns, "most": most, "plan": plan, "serial": SERIAL}
        done = finish(unit, lanes, self.attr, self.scalars) if finishes else "nullptr"
        pieces = max(1, min(_PIECES, self.outer // (_PIECE_COLUMNS * threads)))
        work = {"products": self.inner * self.outer, "groups": -(-self.outer // columns), "threads": threads}
        work |= {"pieces": pieces, "parts": pieces * threads}
        given, numbers = ", ".join([*operands, results]), ", ".join(map(str, (self.inner, self.outer, *strides)))
        return _OF_ROWS.format(**names, **tiles, **work, finish=done, given=given, numbers=numbers)

    def _driver(self, unit: Unit, form: str, lanes: int, texts: tuple[str, str]) -> None:
        """What all matmuls of a form have in common."""
        pack, calls = texts
        fields = {"form": form, "types": POINTS[form], "v": unit.vector("f32", lanes), "w": lanes}
        text = _DRIVER.format(**fields, loops=_LOOPS[form], pack=pack, calls=calls)
        unit.helpers.setdefault(f"fb_by_{form}", text)

    def _given(self, offset: tuple[str, str]) -> tuple[list[str], str]:
        """The factors and what is added, as arguments of the driver, and the results."""
        places = iter(range(2, 5))
        factors = zip((self.x[0], self.weight[0]), offset, strict=True)
        operands = [f"(const {self.type}*)args[{k}] + {n}{more}" for k, (n, more) in enumerate(factors)]
        offsets = (self.scale, self.bias, self.other and self.other[0])
        operands += ["nullptr" if n is None else f"(const float*)args[{next(places)}] + {n}" for n in offsets]
        return operands, f"(float*)args[{next(places, 5)}]"

    def by_dots(self, unit: Unit) -> bool:
        """Whether sums are vectors along the rows of both factors on this machine."""
        return self.form == "dots" or (self.form == "own" and unit.target.vector_bytes != 32)

    def _dots(self, unit: Unit) -> Blocking:
        """The kernel on rows of both factors."""
        lanes = max(unit.target.vector_bytes // 4, 4)
        registers = REGISTERS.get(unit.target.vector_bytes, 16)
        most = min(self.rows, (registers - 1) // 5)
        columns = 8 if 9 * self.rows < registers else 4
        tiles = -(-self.rows // most)
        few = tiles <= _FEW
        block = columns if few else _DOT_COLUMNS
        piece = _even(self.inner, _DOT_PIECE_FEW if few else _DOT_PIECE, lanes)
        row, copied = self.x[1], 0
        # Rows would fall on the same lines of the cache, or are not yet f32.
        if self.half or (self.rows > 2 and self.x[1] % 512 == 0):
            row = (-(-piece // 16) | 1) * 16
            copied = most * row
        tail = self.inner % lanes != 0
        points = [dot(unit, lanes, n, columns, tail, self.type) for n in self._heights(tiles)]
        self._driver(unit, "dots", lanes, ("", _DOTS))
        copies = (row, copied * (tiles if few else 1), copied if few else 0)
        # Each call fetches its share of the next block's rows, or all of them.
        fetched = (0, 0, columns) if few else (block, 65536 // tiles, 1)
        both = points, points if self.outer % columns else []
        return self._blocking(unit, "dots", (piece, block, columns), tiles, copies, fetched, "nullptr", both)

    def _panels(self, unit: Unit) -> Blocking:
        """The kernel on panels of columns."""
        lanes = max(unit.target.vector_bytes // 4, 4)
        registers = REGISTERS.get(unit.target.vector_bytes, 16)
        most = min(MOST_ROWS, (registers - 3) // 2)
        columns = 2 * lanes
        tiles = -(-self.rows // most)
        _, inner_stride, outer_stride = self.weight
        turned = outer_stride != 1
        in_place = not turned and tiles == 1 and self.outer % lanes == 0 and not self.half
        small = unit.target.vector_bytes == 32
        floats = panel_floats(unit.target.cache)
        piece = _even(self.inner, _IN_PLACE if in_place else _SMALL_PANEL if small else _PANEL, 1)
        block = columns * max(floats // (piece * columns), 1)
        packing = panels(unit, lanes, floats, turned)
        # Of the panels' next piece each tile fetches a row of a turned weight, or each chain a row of all panels
        # or, with fewer chains than rows, each tile a line of all rows.
        fetched = (_CHAIN * inner_stride, inner_stride)
        if turned:
            fetched = (_CHAIN, 1)
        elif not in_place and tiles * (block // columns) * -(-piece // _CHAIN) >= piece:
            fetched = (inner_stride, -(-block // _CHAIN))
        both = self._panel_points(unit, lanes, self._heights(tiles))
        self._driver(unit, "panels", lanes, (_PACK.format(chain=_CHAIN), _CHAINS.format(chain=_CHAIN)))
        fetches = (*fetched, inner_stride if in_place else columns)
        sizes = piece, -(-self.outer // columns) * columns if in_place else block, columns
        pack = "nullptr" if in_place else f"{packing}<{self.type}>"
        return self._blocking(unit, "panels", sizes, tiles, (ROW, most * ROW, 0), fetches, pack, both)

    def _panel_points(self, unit: Unit, lanes: int, heights: Iterable[int]) -> Points:
        """Tiles of those heights: of two vectors, and of what is left of the columns."""
        left = self.outer % (2 * lanes)
        whole = [tile(unit, lanes, rows, 2, lanes) for rows in heights if self.outer > left]
        return whole, [tile(unit, lanes, rows, -(-left // lanes), (left - 1) % lanes + 1) for rows in heights if left]

    def _blocking(
        self, unit: Unit, form: str, sizes: Sizes, tiles: int, copies: Sizes, fetched: Sizes, pack: str, points: Points
    ) -> Blocking:
        """What follows for the numbers of the driver from the sizes of tiles, and how threads share the work."""
        columns, lanes = sizes[2], max(unit.target.vector_bytes // 4, 4)
        products = self.batch[0] * self.rows * self.inner * self.outer
        threads = unit.target.threads if self.batch[0] == 1 and products > SERIAL else 1
        groups, height = -(-self.outer // columns), self.rows / tiles
        rows, parts = grid(tiles, groups, threads, (height * columns, lanes * height, lanes * columns))
        pieces = max(1, min(_PIECES, self.outer // (_PIECE_COLUMNS * parts)))
        parts = min(groups, parts * pieces)
        strides = (self.x[1], *self.weight[1:], self.out_stride, self.other[1] if self.other else 0)
        numbers = (self.rows, self.inner, self.outer, *strides, *sizes, tiles, rows, parts, *copies, *fetched)
        return Blocking(form, numbers, pack, points, rows * parts, 0 if products <= SERIAL else pieces)

    def _kernel(self, unit: Unit, name: str, plan: Blocking) -> str:
        """The numbers of this shape; the unit has the driver of its form once."""
        form, lanes, count = plan.form, max(unit.target.vector_bytes // 4, 4), plan.count
        offsets = (self.scale, self.bias, self.other and self.other[0])
        offset = ("", "") if self.batch[0] == 1 else (f" + i * {self.batch[1]}", f" + i * {self.batch[2]}")
        operands, results = self._given(offset)
        done = "nullptr"
        if self.attr != "none" or offsets != (None, None, None):
            done = finish(unit, lanes, self.attr, self.scalars)
        both = ("{" + ", ".join(pointers or ["nullptr"]) + "}" for pointers in plan.points)
        call = f"  fb_by_{form}({name}_shape, {', '.join((*operands, results))}, begin, end);"
        if self.batch[0] > 1:
            operands.append(f"{results} + i * {self.batch[3]}")
            call = f"  for (int64_t i = begin; i < end; i++)\n    fb_by_{form}({name}_shape, {', '.join(operands)}, 0, "
            call += f"{count});"
            count = self.batch[0]
        start = f"{name}_part(args, sizes, 0, {count})"
        if plan.pieces:
            start = f"fb_parallel({name}_part, args, sizes, {count}, {plan.pieces})"
        numbers, points = ", ".join(map(str, plan.numbers)), ", ".join((plan.pack, *both, done))
        names = {"name": name, "form": form, "type": self.type}
        return _KERNEL.format(**names, numbers=numbers, points=points, call=call, start=start)

    def _heights(self, tiles: int) -> list[int]:
        """Rows of the tiles that occur."""
        small = self.rows // tiles
        return [small, small + 1] if self.rows % tiles else [small]


def grid(rows: int, columns: int, threads: int, costs: tuple[float, float, float]) -> tuple[int, int]:
    """The parts of rows and of columns, one a thread, of which the largest takes the least time.

    costs: of a tile, and of bringing in what a row and a column of tiles read. A core multiplies a vector in about the
    time in which a word comes from the cache that all share.
    """

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
    if form not in ("dots", "panels") or (form == "dots" and not along):
        raise LoweringError(f"{OP} has no form {form} for this weight")
    return str(form)


def panel_floats(cache: int) -> int:
    """Floats of panels that a thread makes at a time: half of what is its own of the second-level cache, where another
    thread of the core may have the other half."""
    return min(max(1 << (cache // 16).bit_length() - 1, 1 << 14), 1 << 17)


def _even(total: int, most: int, multiple: int) -> int:
    """The size of equal pieces of at most so many products."""
    pieces = -(-total // most)
    return -(-total // (pieces * multiple)) * multiple
