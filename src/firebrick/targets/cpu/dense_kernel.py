"""Convolutions with packed constant weights as C++: matmuls whose rows of x are pixels, found where they are.

The products of one result are taken in runs: elements that lie side by side in the input, channels last, and in the
panel of weights; those of a row of the window where the window is not dilated. A tile is some results of one row by the
columns of a panel, as in `matmul_kernel`. In wide images few tiles reach past the ends, and those copy what they read;
the input of others is padded by a loop before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from firebrick.errors import LoweringError
from firebrick.ir.index.expr import Expr, as_int
from firebrick.ir.loops.program import Extern, Ref
from firebrick.targets.cpu.epilogue import bounds, finish
from firebrick.targets.cpu.matmul_kernel import MOST_ROWS, PIECE, REGISTERS, SERIAL, grid, panel_floats
from firebrick.targets.cpu.tiles import CLIP, pixels
from firebrick.targets.cpu.unit_writer import Unit

OP = "firebrick::convolution.out"
Field = int | str | tuple[Any, ...]
"""A number, the name of an array or function, or several of one kind."""

_DRIVER = """\
struct fb_dense{columns}_{v} {{
  fb_given x, weight, bias, other;
  int64_t out, row_parts, panel_parts, rows, panels, band, outer, inner, places, tiles, small, spare, lines, pitch[3];
  int64_t step[3], pad_top, pad_left, stride, height, line, x_line, reach, patch, most;
  const int64_t *runs, *tops;
  const fb_piece* pieces;
  int64_t parts;
  void (*tile[2][2])(const float*, int64_t, const int64_t*, int64_t, const float*, int64_t, const float*, int64_t,
      float*, int64_t, bool, const float*, const float*, float, float);
  const float* bounds;
  void (*finish)(float*, int64_t, const float*, const float*, const float*, int64_t, int64_t, int64_t);
}};
static void fb_dense{columns}_{v}_part(void* const* args, const int64_t* shape, int64_t begin, int64_t end) {{
  const fb_dense{columns}_{v}& s = *(const fb_dense{columns}_{v}*)shape;
  const float *const x = s.x.of(args), *const packed = s.weight.of(args);
  const float *const bias = s.bias.of(args), *const other = s.other.of(args);
  float* const out = (float*)args[s.out];
  float patch[s.most * s.patch + 1];
  int64_t patches[s.most + 1];
  for (int64_t k = 0; k < s.most; k++) patches[k] = k * s.patch;
  const int64_t panel = s.inner * s.places * {columns}, before = s.pad_top * s.x_line + s.pad_left;
  for (int64_t share = begin; share < end; share++) {{
  const int64_t across = share / s.panel_parts, along = share % s.panel_parts;
  const int64_t row_from = s.rows * across / s.row_parts, row_to = s.rows * (across + 1) / s.row_parts;
  const int64_t panel_from = s.panels * along / s.panel_parts, panel_to = s.panels * (along + 1) / s.panel_parts;
  for (int64_t r0 = row_from; r0 < row_to; r0 += s.band)
    for (int64_t p = panel_from; p < panel_to; p++)
      for (const fb_piece* piece = s.pieces; piece < s.pieces + s.parts; piece++) {{
        const int64_t size = piece->size, products = piece->runs * size;
        const int64_t n = s.outer - p * {columns} < {columns} ? s.outer - p * {columns} : {columns};
        const int64_t last = r0 + s.band < row_to ? r0 + s.band : row_to, some = (last - r0) * s.tiles;
        const int64_t ahead = ({columns} + some - 1) / some;
        const float* const b = packed + p * panel + piece->row * {columns};
        const float* next = b + products * {columns};
        const bool first = piece == s.pieces, done = piece == s.pieces + s.parts - 1;
        const float* const start = first && bias ? bias + p * {columns} : nullptr;
        const float* const bounds = done && s.bounds ? s.bounds : fb_unbound;
        const auto& tile = s.tile[p == s.panels - 1];
        int64_t image = r0 / s.lines, y = r0 % s.lines;
        for (int64_t r = r0; r < last; r++) {{
          const int64_t top = y * s.stride - s.pad_top;
          const float* const from = x + image * s.step[0] + y * s.step[1] - before;
          float* c = out + image * s.pitch[0] + y * s.pitch[1] + p * {columns};
          const int64_t *at = s.runs + piece->place, *row = s.tops + piece->place;
          int64_t live = piece->runs;
          if (s.most) {{
            while (live && top + *row < 0) row++, at++, live--;
            while (live && top + row[live - 1] >= s.height) live--;
          }}
          const float* const w = b + (piece->runs - live ? at - s.runs - piece->place : 0) * size * {columns};
          for (int64_t t = 0, i = 0, spare = 0; t < s.tiles; t++, next += products * ahead) {{
            spare += s.spare;
            const bool wide = spare >= s.tiles;
            const int64_t count = s.small + wide, left = i * s.step[2] - s.pad_left;
            const float* a = from + i * s.step[2];
            const int64_t* places = at;
            if (s.most && (left < 0 || left + (count - 1) * s.step[2] + s.reach > s.line)) {{
              for (int64_t h = 0; h < live; h++)
                fb_clip(patch + patches[h], from + s.pad_left + row[h] * s.x_line, left + at[h] - row[h] * s.x_line,
                        (count - 1) * s.step[2] + size, s.line);
              a = patch, places = patches;
            }}
            tile[wide](a, s.step[2], places, live, w, size, next, ahead, c, s.pitch[2], first, start,
                       done && other ? other + (c - out) : nullptr, bounds[0], bounds[1]);
            if (done && s.finish) s.finish(c, s.pitch[2], nullptr, nullptr, nullptr, 0, count, n);
            i += count, c += count * s.pitch[2];
            if (wide) spare -= s.tiles;
          }}
          if (++y == s.lines) y = 0, image++;
        }}
      }}
  }}
}}
"""
"""What the kernels of all shapes do, by the table of one. Runs above and below the image are left out; a tile at its
left or right end has its runs copied, with zeros."""

_SHARED = """\
struct fb_given {
  int64_t place, offset;
  const float* of(void* const* args) const { return place < 0 ? nullptr : (const float*)args[place] + offset; }
};
struct fb_piece { int64_t row, runs, place, size; };
static const float fb_unbound[2] = {-__builtin_inff(), __builtin_inff()};
"""
"""One of a kernel's arguments, and where in it to begin, none where the place is negative; and a part of a sum."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `firebrick::convolution`, with the offsets and strides (batch, height, width) of its buffers.

    size: height and width of the result. window: height and width. padding: left, right, top and bottom.
    bias, other: their offsets, None where there are none.
    """

    batch: int
    inner: int
    outer: int
    given: tuple[int, int]
    size: tuple[int, int]
    columns: int
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, ...]
    dilation: tuple[int, int]
    x: tuple[int, int, int, int]
    bias: int | None
    other: int | None
    attr: str
    scalars: tuple[float, ...]

    @staticmethod
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[Call, tuple[str, ...], tuple[Expr, ...]]:
        """What a call computes, and the names of its buffers in the order of the kernel's arguments."""
        x, packed, bias, other, outer, stride, padding, dilation, attr, scalars = call.args
        (out,) = call.outs
        if not (isinstance(x, Ref) and isinstance(packed, Ref)) or out is None:
            raise LoweringError(f"{call.op} has arguments of another kind than its kernel")
        batch, inner, *image = map(as_int, x.shape)
        if inner > 1 and as_int(x.strides[1]) != 1:
            raise LoweringError(f"{call.op} wants the channels of a pixel side by side")
        dense = len(packed.shape) == 5
        window = packed.shape[1:3] if dense else packed.shape[:2]
        columns = as_int(packed.shape[4]) if dense else 0
        sizes: Any = tuple(tuple(map(as_int, n)) for n in (buffers[out].shape[2:], window))
        lists: Any = (stride, padding, dilation, scalars)
        *how, numbers = map(tuple, lists)
        place = (as_int(x.offset), *(as_int(x.strides[d]) for d in (0, 2, 3)))
        offsets = [as_int(r.offset) if isinstance(r, Ref) else None for r in (bias, other)]
        ends = (*how, place, *offsets, str(attr), numbers)
        fields: Any = (batch, inner, outer, tuple(image), sizes[0], columns, sizes[1], *ends)
        result = Call(*fields)
        refs = [r.buffer for r in (x, packed, bias, other) if isinstance(r, Ref)]
        return result, (*refs, out), ()

    @property
    def kind(self) -> str:
        """A word for the kernel's name."""
        return f"convolution_{self.size[0]}x{self.size[1]}x{self.inner}x{self.outer}"

    def fields(self, shape: Mapping[str, Field]) -> dict[str, Field]:
        """The fields of a driver's table, in its order: where the buffers are among the arguments, and `shape`."""
        place, operands = 2, {"x": (0, self.x[0]), "weight": (1, 0)}
        for field in ("bias", "other"):
            offset = getattr(self, field)
            operands[field] = (-1, 0) if offset is None else (place, offset)
            place += offset is not None
        return {**operands, "out": place, **shape}

    def is_serial(self) -> bool:
        """Whether one thread does all."""
        products = self.batch * math.prod((*self.size, *self.window, self.outer))
        return products * (self.inner if self.columns else 1) <= SERIAL

    def entry(self, unit: Unit, name: str, kind: str, driver: str, count: int, shape: Mapping[str, Field]) -> str:
        """The kernel: a table of its shape, by which the driver of all kernels of a kind does `count` parts."""
        unit.helpers.setdefault("fb_clip", CLIP)
        unit.helpers.setdefault("fb_shared", _SHARED)
        unit.helpers.setdefault(f"fb_{kind}", driver)
        text = ", ".join(f".{field} = {_written(value)}" for field, value in self.fields(shape).items())
        pieces = int(not self.is_serial())
        run = f"fb_parallel(fb_{kind}_part, args, (const int64_t*)&{name}_shape, {count}, {pieces})"
        table = f"static const fb_{kind} {name}_shape = {{{text}}};\n"
        return f'{table}extern "C" void {name}(void* const* args, const int64_t*) {{ {run}; }}\n'


@dataclass(frozen=True, slots=True)
class _Axis:
    """One of the two axes of an image. step: elements of the input between neighbouring results."""

    size: int
    step: int
    out: int


class Dense:
    """The kernel of a convolution in which each result depends on all channels."""

    def __init__(self, call: Call, name: str) -> None:
        self.call, self.name = call, name

    def _axes(self, unit: Unit, tall: int, panels: int, threads: int) -> tuple[_Axis, _Axis, tuple[int, int]]:
        """What parts take by lines, what tiles go along, and the grid of parts.

        Single pixels may be taken in lines of several rows, as long as these stay in cache: fewer tiles are less tall
        than others. A tile costs as much as its pixels and one more, whose time reading the panel's row takes.
        """
        call, lanes = self.call, self._lanes(unit)
        (height, width), (_, _, x_row, x_column) = call.size, call.x
        y_step, x_step = x_row * call.stride[0], x_column * call.stride[1]
        ways = [(_Axis(height, y_step, width * call.outer), _Axis(width, x_step, call.outer))]
        if width < MOST_ROWS and height > width and not any(call.padding):
            ways.append((ways[0][1], ways[0][0]))
        if call.window == (1, 1) and y_step == width * x_step and not any(call.padding):
            most = 2 * panel_floats(unit.target.cache) // y_step
            for n in (n for n in range(2, min(height, most) + 1) if height % n == 0):
                across = _Axis(height // n, n * y_step, n * width * call.outer)
                ways.append((across, _Axis(n * width, x_step, call.outer)))
        products, reads = call.inner * math.prod(call.window) * call.columns, call.given[1] * call.inner * lanes

        def plan(way: tuple[_Axis, _Axis]) -> tuple[float, _Axis, _Axis, tuple[int, int]]:
            across, along = way
            rows, pixels = call.batch * across.size, along.size - (-along.size // tall)
            parts = grid(rows, panels, threads, (pixels * products, call.stride[0] * reads, lanes * products))
            return -(-rows // parts[0]) * -(-panels // parts[1]) * pixels, across, along, parts

        _, across, along, parts = min(map(plan, ways), key=lambda w: w[0])
        return across, along, parts

    def text(self, unit: Unit) -> str:
        """The kernel, less what `unit` puts before it."""
        shape, tables, driver, count = self.plan(unit)
        types = {"runs": "int64_t", "tops": "int64_t", "pieces": "fb_piece", "bounds": "float"}
        texts = (f"static const {types[k]} {self.name}_{k}[] = {_written(t)};\n" for k, t in tables.items())
        v = unit.vector("f32", self._lanes(unit))
        return "".join(texts) + self.call.entry(unit, self.name, f"dense{self.call.columns}_{v}", driver, count, shape)

    def _lanes(self, unit: Unit) -> int:
        """Of vectors that a panel has whole ones of."""
        return math.gcd(max(unit.target.vector_bytes // 4, 1), self.call.columns)

    def plan(self, unit: Unit) -> tuple[dict[str, Field], dict[str, tuple[Any, ...]], str, int]:
        """The fields of the driver's table behind the buffers, what some of them point to, the driver's text, and how
        many parts there are to share out."""
        call, lanes, threads = self.call, self._lanes(unit), 1 if self.call.is_serial() else unit.target.threads
        vectors, panels, v = call.columns // lanes, -(-call.outer // call.columns), unit.vector("f32", lanes)
        self.across, self.along, parts = self._axes(unit, tallest(unit, vectors), panels, threads)
        along, across = self.along, self.across
        tiles, rows = -(-along.size // tallest(unit, vectors)), call.batch * across.size
        runs, pieces = self._pieces()
        ends = bounds(call.attr, call.scalars)
        padding, tops = self._padding(runs, max(p[3] for p in pieces), max(p[1] for p in pieces), tiles)
        shape: dict[str, Field] = {
            "row_parts": parts[0], "panel_parts": parts[1], "rows": rows, "panels": panels, "band": self._band(unit),
            "outer": call.outer, "inner": call.inner, "places": math.prod(call.window), "tiles": tiles,
            "small": along.size // tiles, "spare": along.size % tiles, "lines": across.size,
            "pitch": (math.prod(call.size) * call.outer, across.out, along.out),
            "step": (call.x[1], across.step, along.step), **padding, "runs": f"{self.name}_runs",
            "tops": f"{self.name}_tops", "pieces": f"{self.name}_pieces", "parts": len(pieces),
            "tile": self._tiles(unit, lanes, vectors, tiles, panels),
            "bounds": f"{self.name}_bounds" if ends else "nullptr",
            "finish": "nullptr" if ends is not None else finish(unit, lanes, call.attr, call.scalars),
        }  # fmt: skip
        tables: dict[str, tuple[Any, ...]] = {"runs": tuple(runs), "tops": tuple(tops), "pieces": tuple(pieces)}
        tables |= {"bounds": ends} if ends else {}
        return shape, tables, _DRIVER.format(v=v, columns=call.columns), math.prod(parts)

    def _runs(self) -> list[tuple[int, int]]:
        """Offset and length of the stretches of the input of one result, in the order of the weights."""
        call = self.call
        _, _, x_row, x_column = call.x
        row = _joined([(j * call.dilation[1] * x_column, call.inner) for j in range(call.window[1])])
        offsets = [i * call.dilation[0] * x_row for i in range(call.window[0])]
        runs = [(offset + start, length) for offset in offsets for start, length in row]
        return _joined(runs) if len(row) == 1 and not any(call.padding) else runs

    def _pieces(self) -> tuple[list[int], list[tuple[int, ...]]]:
        """Offsets of the runs, none longer than a chain of sums; and the parts of the sum.

        A part: first row of the panel, number of runs, position of the first one, length of each.
        """
        runs = self._runs()
        length = runs[0][1]
        chains = -(-length // PIECE)
        bounds = [length * i // chains for i in range(chains + 1)]
        offsets = [offset + start for offset, _ in runs for start in bounds[:-1]]
        if chains > 1:
            sizes = [end - start for start, end in pairwise(bounds)]
            places = [k * length + start for k in range(len(runs)) for start in bounds[:-1]]
            return offsets, [(place, 1, i, sizes[i % chains]) for i, place in enumerate(places)]
        parts = -(-len(runs) // max(1, PIECE // length))
        cuts = [len(runs) * i // parts for i in range(parts + 1)]
        return offsets, [(a * length, b - a, a, length) for a, b in pairwise(cuts)]

    def _padding(self, runs: list[int], length: int, most: int, tiles: int) -> tuple[dict[str, int], list[int]]:
        """What finds the input of tiles that reach past the ends of the image, and the rows that runs are in."""
        call, along = self.call, self.along
        padded, (left, _, top, _) = any(call.padding), call.padding
        sizes = {
            "pad_top": top, "pad_left": left * call.inner, "stride": call.stride[0], "height": call.given[0],
            "line": call.given[1] * call.inner, "x_line": call.x[2],
            "reach": ((call.window[1] - 1) * call.dilation[1] + 1) * call.inner,
            "patch": (-(-along.size // tiles) - 1) * along.step + length if padded else 0,
            "most": most if padded else 0,
        }  # fmt: skip
        return sizes, [k * call.window[0] // len(runs) * call.dilation[0] for k in range(len(runs))]

    def _band(self, unit: Unit) -> int:
        """Rows of the images that are taken for all weights before the next ones: they stay in cache as panels do."""
        return max(1, panel_floats(unit.target.cache) // max(1, self.across.step))

    def _tiles(self, unit: Unit, lanes: int, vectors: int, tiles: int, panels: int) -> Field:
        """The tile functions of panels before the last and of the last, each for fewer pixels and for one more."""
        left, small = self.call.outer - (panels - 1) * self.call.columns, self.along.size // tiles
        used, sizes = -(-left // lanes), (small, small + bool(self.along.size % tiles))
        widths = ((vectors, lanes) if panels > 1 else None, (used, left - (used - 1) * lanes))
        columns = self.call.columns
        return tuple(tuple(pixels(unit, lanes, n, *w, columns) if w else "nullptr" for n in sizes) for w in widths)


def tallest(unit: Unit, vectors: int) -> int:
    """Most pixels of a tile of so many vectors of channels."""
    registers = REGISTERS.get(unit.target.vector_bytes, 16)
    return max(1, min(MOST_ROWS, (registers - vectors - 1) // vectors))


def _written(value: Field) -> str:
    """A field as C++ has it."""
    return f"{{{', '.join(map(_written, value))}}}" if isinstance(value, tuple) else str(value)


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """One run, if each begins where the one before ends."""
    if all(sum(a) == b[0] for a, b in pairwise(runs)):
        return [(runs[0][0], sum(length for _, length in runs))]
    return runs
