"""Matmuls by constant weights as C++: tiles of sums in registers, blocks of the weight in cache, no copy of it kept.

The blocking is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (ACM TOMS 34:3,
2008). There are two forms:

- A weight whose rows lie along the sum (nn.Linear) is read where it is: sums are vectors along the rows of both
  factors (`fb_dot`). Adding up their lanes costs as much as 50 products, so short sums of many
  rows take the second form.
- Else panels of columns are made on the way (`fb_tile`), each once a call and thread, or read in place by few rows.

Calls name the form ("dots", "panels"), or leave it to what is said above ("own").

A sum's order depends on the shapes alone, not on threads, and is kept short, which bounds its rounding error: lanes, or
chains of `_CHAIN` products. Scale, bias, what is added and the activation are applied while results are in cache.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from firebrick.codegen.cpp_finish import finish
from firebrick.codegen.cpp_tiles import ROW, dot, panels, tile
from firebrick.errors import LoweringError
from firebrick.loops.ir import Extern, Ref
from firebrick.symbolic.expr import as_int

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from firebrick.codegen.cpp_writer import Unit

__all__ = ["MOST_ROWS", "OP", "PIECE", "REGISTERS", "SERIAL", "Linear"]

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

_PANEL = 512
"""Products of a panel."""
PIECE, _CHAIN = 256, 128
"""Products in one chain of additions: of convolutions, and here."""
_IN_PLACE = 8
"""Products of a piece where a panel is not copied: rows of the weight are read side by side."""
MOST_ROWS = 14
_FLOATS = 1 << 16
"""Floats of panels that a thread makes at a time: they stay in its second-level cache."""

_PART = """\
static void {name}_part(void* const* args, const int64_t*, int64_t begin, int64_t end) {{
  const float* const x = (const float*)args[0] + {x_offset};
  const float* const w = (const float*)args[1] + {w_offset};
  const float* const scale = {scale};
  const float* const bias = {bias};
  const float* const other = {other};
  float* const out = (float*)args[{out}];
  const int64_t row_from = {row_from}, row_to = {row_to};
  const int64_t from = {column_from}, to = {column_to};
{copies}
  for (int64_t k = 0; k < {inner}; k += {piece}) {{
    const int64_t part = {inner} - k < {piece} ? {inner} - k : {piece};
    for (int64_t n0 = from; n0 < to; n0 += {block}) {{
      const int64_t n1 = to - n0 < {block} ? to : n0 + {block};
{pack}
      for (int64_t t = row_from; t < row_to; t++) {{
        const int64_t r = {rows} * t / {tiles}, count = {rows} * (t + 1) / {tiles} - r;
        const float* a = x + r * {x_stride} + k;
{copy}
        for (int64_t n = n0; n < n1; n += {columns}) {{
          float* const c = out + r * {out_stride} + n;
          const int64_t left = n1 - n < {columns} ? n1 - n : {columns};
{calls}
        }}
{finish}
      }}
    }}
  }}
}}
extern "C" void {name}(void* const* args, const int64_t* sizes) {{
  {start};
}}
"""

_COPY = """\
        {{
          float* const to_row = copied{slot};
          if ({when})
            for (int64_t i = 0; i < count; i++) __builtin_memcpy(to_row + i * {row}, a + i * {x_stride}, part * 4);
          a = to_row;
        }}"""

_DOTS = """\
          const float* const next = w + (n1 + {ahead}) * {ldb} + k;
{calls}"""

_PACK = """\
      for (int64_t n = n0; n < n1; n += {columns})
        {function}(w + k * {inner_stride} + n * {outer_stride}, {stride}, n1 - n < {columns} ? n1 - n : {columns}, part,
            fb_panels + (n - n0) * {piece}, {columns});"""

_CHAINS = """\
          const float* const b = {panel};
          const float* const next = {next};
          for (int64_t q = 0; q < part; q += {chain}) {{
            const int64_t some = part - q < {chain} ? part - q : {chain};
{calls}
          }}"""


@dataclass(frozen=True, slots=True)
class Linear:
    """One shape of matmul, and the buffers of one call of it.

    Offsets and strides in elements. weight: offset, strides [inner, outer], one of which is 1. scale, bias: offsets;
    other: offset and stride of what is added; None where there are none. dots: which of the two forms.
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
    dots: bool

    @staticmethod
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[Linear, tuple[str, ...]]:
        """The shape of a call, and the names of its buffers in the order of the kernel's arguments."""
        x, weight, scale, bias, other, attr, scalars, *forms = call.args
        (out,) = call.outs
        if not (isinstance(x, Ref) and isinstance(weight, Ref)) or out is None or as_int(x.strides[1]) != 1:
            raise LoweringError(f"{call.op} has arguments of another kind than its kernel")
        inner, outer = map(as_int, weight.shape)
        strides = [as_int(s) if n > 1 else 1 for s, n in zip(weight.strides, (inner, outer), strict=True)]
        if 1 not in strides:
            raise LoweringError(f"{call.op} has a weight with gaps")
        made = Linear(
            as_int(x.shape[0]),
            inner,
            outer,
            (as_int(x.offset), as_int(x.strides[0])),
            (as_int(weight.offset), strides[0], strides[1]),
            as_int(scale.offset) if isinstance(scale, Ref) else None,
            as_int(bias.offset) if isinstance(bias, Ref) else None,
            (as_int(other.offset), as_int(other.strides[0])) if isinstance(other, Ref) else None,
            as_int(buffers[out].strides[0]),
            str(attr),
            tuple(scalars),  # type: ignore[arg-type]
            _by_dots(forms[0] if forms else "own", as_int(x.shape[0]), inner, strides[0] == 1),
        )
        given = [r.buffer for r in (x, weight, scale, bias, other) if isinstance(r, Ref)]
        return made, (*given, out)

    @property
    def name(self) -> str:
        """Name of the kernel: equal shapes have the same."""
        digest = hashlib.blake2s(repr(self).encode(), digest_size=3).hexdigest()
        return f"linear_{self.rows}x{self.inner}x{self.outer}_{digest}"

    def text(self, unit: Unit, threads: int) -> str:
        """The kernel, less what `unit` puts before it."""
        return (self._dots if self.dots else self._panels)(unit, threads)

    def _dots(self, unit: Unit, threads: int) -> str:
        """The kernel on rows of both factors."""
        lanes = max(unit.target.vector_bytes // 4, 4)
        registers = REGISTERS.get(unit.target.vector_bytes, 16)
        most = min(self.rows, (registers - 1) // 5)
        columns = 8 if 9 * self.rows < registers else 4
        tiles = -(-self.rows // most)
        few = tiles <= _FEW
        block = columns if few else _DOT_COLUMNS
        piece = _even(self.inner, _DOT_PIECE_FEW if few else _DOT_PIECE, lanes)
        name, ldb = dot(unit, lanes), self.weight[2]
        row, copies, copy = self.x[1], "", ""
        if self.rows > 2 and self.x[1] % 512 == 0:  # rows would fall on the same lines of the cache
            row = (-(-piece // 16) | 1) * 16
            slot, when = (f" + t * {most * row}", "n0 == from") if few else ("", "true")
            copies = _memory(most * row * (tiles if few else 1))
            copy = _COPY.format(slot=slot, when=when, row=row, x_stride=self.x[1])
        fetched = f"next, {columns if few else 1}"
        arguments = f"(a, {row}, w + n * {ldb} + k, {ldb}, part, {fetched}, c, {self.out_stride}, left, k == 0)"

        def calls(tail: str) -> str:
            texts = (f"{name}<{rows}, {columns // 4}, {tail}>{arguments};" for rows in self._heights(tiles))
            return _choice("            ", texts, self._tests(tiles))

        uneven = "true" if self.inner % lanes else "false"
        text = calls(uneven)
        if self.outer % columns and uneven == "false":  # only the last columns are not whole
            text = f"          if (left == {columns}) {{\n{text}\n          }} else {{\n{calls('true')}\n          }}"
        return self._kernel(
            unit,
            threads,
            lanes=lanes,
            tiles=tiles,
            piece=piece,
            block=block,
            columns=columns,
            copies=copies,
            pack="",
            copy=copy,
            calls=_DOTS.format(
                ahead="0"
                if few
                else f"((t - row_from) * {block // columns} + (n - n0) / {columns}) * {columns} / {tiles}",
                ldb=ldb,
                calls=text,
            ),
        )

    def _panels(self, unit: Unit, threads: int) -> str:
        """The kernel on panels of columns."""
        lanes = max(unit.target.vector_bytes // 4, 4)
        registers = REGISTERS.get(unit.target.vector_bytes, 16)
        most = min(MOST_ROWS, (registers - 3) // 2)
        columns = 2 * lanes
        tiles = -(-self.rows // most)
        offset, inner_stride, outer_stride = self.weight
        del offset
        turned = outer_stride != 1
        in_place = not turned and tiles == 1 and self.outer % lanes == 0
        piece = _even(self.inner, _IN_PLACE if in_place else _PANEL, 1)
        block = columns * max(_FLOATS // (piece * columns), 1)
        panel, pitch = f"fb_panels + (n - n0) * {piece}", columns
        pack = ""
        if in_place:
            panel, pitch = f"w + k * {inner_stride} + n", inner_stride
        else:
            pack = _PACK.format(
                columns=columns,
                function=panels(unit, lanes, _FLOATS, turned),
                inner_stride=inner_stride,
                outer_stride=outer_stride,
                stride=outer_stride if turned else inner_stride,
                piece=piece,
            )
        if turned:  # the rows of the next block lie one after the other
            step = -(-columns // tiles)
            ahead = f"w + (n + {block}) * {outer_stride} + k + (t - row_from) * {step} * part"
        else:
            step = inner_stride
            ahead = f"w + k * {inner_stride} + n + {columns if in_place else block} + t % 2 * {lanes}"
        return self._kernel(
            unit,
            threads,
            lanes=lanes,
            tiles=tiles,
            piece=piece,
            block=self._whole(columns) if in_place else block,
            columns=columns,
            copies=_memory(most * ROW),
            pack=pack,
            copy=_COPY.format(slot="", when="true", row=ROW, x_stride=self.x[1]),
            calls=_CHAINS.format(
                panel=panel,
                next=ahead,
                chain=_CHAIN,
                calls="\n".join(self._tiles(tile(unit, lanes), lanes, tiles, pitch, step)),
            ),
        )

    def _whole(self, columns: int) -> int:
        return -(-self.outer // columns) * columns

    def _kernel(self, unit: Unit, threads: int, **text: Any) -> str:
        """The kernel around its calls."""
        tiles, columns, lanes, name = text["tiles"], text["columns"], text.pop("lanes"), self.name
        groups = -(-self.outer // columns)
        by_rows, count = self._shared(tiles, groups, threads)
        serial = self.rows * self.inner * self.outer <= SERIAL
        start = f"{name}_part(args, sizes, 0, {count})" if serial else f"fb_parallel({name}_part, args, sizes, {count})"
        places = iter(range(2, 5))
        offsets = (self.scale, self.bias, self.other and self.other[0])
        beside = ["nullptr" if n is None else f"(const float*)args[{next(places)}] + {n}" for n in offsets]
        done = head = ""
        if self.attr != "none" or offsets != (None, None, None):
            other_stride = self.other[1] if self.other else 0
            step = math.gcd(self.outer, text["block"], 0 if by_rows else columns)
            head = finish(unit, lanes, name, self.attr, self.scalars, step, self.out_stride, other_stride)
            places_of = ("scale + n0", "bias + n0", f"other + r * {other_stride} + n0")
            given = ["nullptr" if n is None else text for n, text in zip(offsets, places_of, strict=True)]
            call = f"{name}_finish(out + r * {self.out_stride} + n0, {', '.join(given)}, count, n1 - n0);"
            done = f"        if (k + part == {self.inner}) {call}"
        return head + _PART.format(
            name=name,
            finish=done,
            x_offset=self.x[0],
            x_stride=self.x[1],
            w_offset=self.weight[0],
            scale=beside[0],
            bias=beside[1],
            other=beside[2],
            out=next(places, 5),
            out_stride=self.out_stride,
            row_from="begin" if by_rows else "0",
            row_to="end" if by_rows else str(tiles),
            column_from="0" if by_rows else f"begin * {columns}",
            column_to=self.outer if by_rows else f"end < {groups} ? end * {columns} : {self.outer}",
            inner=self.inner,
            rows=self.rows,
            start=start,
            **text,
        )

    def _shared(self, tiles: int, groups: int, threads: int) -> tuple[bool, int]:
        """Whether threads share out rows rather than columns, and how many parts there are."""
        by_rows = self.rows > self.outer
        if (tiles if by_rows else groups) < 2 * threads:
            by_rows = tiles > groups
        return by_rows, tiles if by_rows else groups

    def _heights(self, tiles: int) -> list[int]:
        """Rows of the tiles that occur."""
        small = self.rows // tiles
        return [small, small + 1] if self.rows % tiles else [small]

    def _tests(self, tiles: int) -> list[str]:
        return [f"count == {rows}" for rows in self._heights(tiles)]

    def _tiles(self, name: str, lanes: int, tiles: int, pitch: int, step: int) -> Iterable[str]:
        """Calls of the tile function for each size of tile that occurs."""
        arguments = (
            f"(a + q, b + q * {pitch}, {pitch}, some, next + q * {step}, {step}, c, {self.out_stride}, k + q == 0)"
        )
        last = self.outer % (2 * lanes)
        widths = [(2, lanes)] if self.outer > last else []
        if last:
            widths.append((-(-last // lanes), (last - 1) % lanes + 1))
        texts = [
            _choice(
                "              ",
                (f"{name}<{rows}, {vectors}, {left}>{arguments};" for rows in self._heights(tiles)),
                self._tests(tiles),
            )
            for vectors, left in widths
        ]
        if len(texts) == 1:
            yield texts[0]
        else:
            yield f"            if (left == {2 * lanes}) {{"
            yield f"{texts[0]}\n            }} else {{\n{texts[1]}\n            }}"


def _by_dots(form: Any, rows: int, inner: int, along: bool) -> bool:
    """Whether sums are vectors along the rows of both factors, which needs a weight whose rows lie along the sum."""
    if form == "own":
        return along and not (inner < _SHORT and rows >= _MANY)
    if form not in ("dots", "panels") or (form == "dots" and not along):
        raise LoweringError(f"{OP} has no form {form} for this weight")
    return bool(form == "dots")


def _even(total: int, most: int, multiple: int) -> int:
    """The size of equal pieces of at most so many products."""
    pieces = -(-total // most)
    return -(-total // (pieces * multiple)) * multiple


def _memory(floats: int) -> str:
    return f"  __attribute__((aligned(64))) float copied[{floats}];"


def _choice(indent: str, calls: Iterable[str], tests: list[str]) -> str:
    """The call whose test holds; the last one needs none."""
    lines = [f"if ({test}) {call}" for call, test in zip(calls, tests, strict=True)]
    lines[-1] = lines[-1].partition(") ")[2]
    return "\n".join(f"{indent}{'else ' if i else ''}{line}" for i, line in enumerate(lines))
