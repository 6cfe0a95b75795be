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
from firebrick.ir.index.expr import Expr
from firebrick.ir.index.number import as_int
from firebrick.ir.loops.program import Extern, Ref
from firebrick.targets.cpu.epilogue import finish
from firebrick.targets.cpu.matmul_kernel import MOST_ROWS, PIECE, REGISTERS, SERIAL, grid, panel_floats
from firebrick.targets.cpu.tiles import CLIP, pixels
from firebrick.targets.cpu.transpose import transpose_helper
from firebrick.targets.cpu.unit_writer import Unit

OP = "firebrick::convolution.out"
Field = int | str | tuple[Any, ...]
"""A number, the name of an array or function, or several of one kind."""
_FLOATS = 1 << 16
"""Floats of a panel that a thread makes at a time: they stay in its second-level cache."""
_PIXELS = 512
"""Pixels for which panels are made anew: that is a move of an element for so many multiplications."""

_DRIVER = """\
struct fb_dense_{v} {{
  fb_given x, weight, scale, bias, other;
  int64_t out, row_parts, panel_parts, rows, panels, band, outer, inner, places, tiles, small, spare, lines, pitch[3];
  int64_t step[3], pad_top, pad_left, stride, height, line, x_line, reach, patch, most;
  const int64_t *runs, *tops;
  const fb_piece* pieces;
  int64_t parts;
  void (*tile[2][2])(const float*, int64_t, const int64_t*, int64_t, const float*, int64_t, const float*, int64_t,
      float*, int64_t, bool);
  const float* (*window)(const float*, int64_t, int64_t, int64_t, int64_t);
  void (*finish)(float*, int64_t, const float*, const float*, const float*, int64_t, int64_t, int64_t);
}};
static void fb_dense_{v}_part(void* const* args, const int64_t* shape, int64_t begin, int64_t end) {{
  const fb_dense_{v}& s = *(const fb_dense_{v}*)shape;
  const float *const x = s.x.of(args), *const packed = s.weight.of(args);
  const float *const scale = s.scale.of(args), *const bias = s.bias.of(args), *const other = s.other.of(args);
  float* const out = (float*)args[s.out];
  float patch[s.most * s.patch + 1];
  int64_t patches[s.most + 1];
  for (int64_t k = 0; k < s.most; k++) patches[k] = k * s.patch;
  const int64_t panel = s.inner * s.places * {columns}, before = s.pad_top * s.x_line + s.pad_left;
  const float *made = packed, *soon = packed;
  int64_t stretch = 1, turn = 0;
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
        const float* b = packed + p * panel;
        if (s.window) {{
          if (piece->channels) {{
            made = s.window(b + piece->channel * s.places, s.inner * s.places, n, piece->channels, s.places);
            stretch = piece->channels * s.places, turn = 0;
            const int64_t then = piece->channel + piece->channels;
            soon = b + (then < s.inner ? then * s.places : panel);
          }}
          b = made;
        }}
        b += piece->row * {columns};
        const float* next = b + products * {columns};
        const bool first = piece == s.pieces, done = s.finish && piece == s.pieces + s.parts - 1;
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
            if (s.window) {{
              const int64_t column = turn / stretch;
              next = column < {columns} ? soon + column * s.inner * s.places + turn % stretch : b;
              turn += products * ahead;
            }}
            tile[wide](a, s.step[2], places, live, w, size, next, ahead, c, s.pitch[2], first);
            if (done)
              s.finish(c, s.pitch[2], scale ? scale + p * {columns} : scale, bias ? bias + p * {columns} : bias,
                       other ? other + (c - out) : other, s.pitch[2], count, n);
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
left or right end has its runs copied, with zeros. Of weights that are not packed, tiles fetch the rows of the next
stretch of channels, each some of one row."""

_WINDOW = """\
static __thread float fb_windows[{floats}] __attribute__((aligned(64)));
static __attribute__((noinline)) const float* fb_window_{v}(const float* w, int64_t stride, int64_t n,
    int64_t channels, int64_t window) {{
  float* to = fb_windows;
  const int64_t k = channels * window, step = channels * {columns}, back = (k - 1) * {columns};
  for (int64_t j = 0; j < n; j += {w}, to += {w}) {{
    const int64_t rows = n - j < {w} ? n - j : {w};
    const float* const from = w + j * stride;
    float* c = to;
    int64_t i = 0, place = 0;
    for (; i + {w} <= k; i += {w}) {{
      {v} t[{w}];
      fb_turn_{v}(t, from + i, stride, rows);
#pragma GCC unroll 16
      for (int q = 0; q < {w}; q++) {{
        *({v}u*)c = t[q];
        c += step;
        if (++place == window) place = 0, c -= back;
      }}
    }}
    for (; i < k; i++) {{
      for (int64_t q = 0; q < {w}; q++) c[q] = q < rows ? from[q * stride + i] : 0.0f;
      c += step;
      if (++place == window) place = 0, c -= back;
    }}
  }}
  return fb_windows;
}}
"""
"""Some channels of a panel, from a weight that is as torch keeps it: rows of n weights, the places of the window
innermost, become rows of {columns} results, the channels innermost. Columns beyond n up to a whole vector are zeros."""

_SHARED = """\
struct fb_given {
  int64_t place, offset;
  const float* of(void* const* args) const { return place < 0 ? nullptr : (const float*)args[place] + offset; }
};
struct fb_piece { int64_t row, runs, place, size, channel, channels; };
"""
"""One of a kernel's arguments, and where in it to begin, none where the place is negative; and a part of a sum."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `firebrick::convolution`, with the offsets and strides (batch, height, width) of its buffers.

    size: height and width of the result. window: height and width. padding: left, right, top and bottom.
    weight: offset of one that is not packed, of which panels are made on the way.
    scale, bias, other: their offsets, None where there are none.
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
    weight: int | None
    scale: int | None
    bias: int | None
    other: int | None
    attr: str
    scalars: tuple[float, ...]

    @staticmethod
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[Call, tuple[str, ...], tuple[Expr, ...]]:
        """What a call computes, and the names of its buffers in the order of the kernel's arguments."""
        x, packed, bias, other, outer, stride, padding, dilation, attr, scalars, *more = call.args
        scale, columns = more or (None, 0)
        (out,) = call.outs
        if not (isinstance(x, Ref) and isinstance(packed, Ref)) or out is None:
            raise LoweringError(f"{call.op} has arguments of another kind than its kernel")
        batch, inner, *image = map(as_int, x.shape)
        if inner > 1 and as_int(x.strides[1]) != 1:
            raise LoweringError(f"{call.op} wants the channels of a pixel side by side")
        dense = len(packed.shape) == 5
        window = packed.shape[2:4] if columns else packed.shape[1:3] if dense else packed.shape[:2]
        panel: Any = as_int(packed.shape[4]) if dense else columns
        sizes: Any = tuple(tuple(map(as_int, n)) for n in (buffers[out].shape[2:], window))
        lists: Any = (stride, padding, dilation, scalars)
        *how, numbers = map(tuple, lists)
        place = (as_int(x.offset), *(as_int(x.strides[d]) for d in (0, 2, 3)))
        offsets = [as_int(r.offset) if isinstance(r, Ref) else None for r in (scale, bias, other)]
        read = [*how, place, as_int(packed.offset) if columns else None, *offsets, str(attr), numbers]
        fields: Any = (batch, inner, outer, tuple(image), sizes[0], int(panel), sizes[1], *read)
        result = Call(*fields)
        refs = [r.buffer for r in (x, packed, scale, bias, other) if isinstance(r, Ref)]
        return result, (*refs, out), ()

    @property
    def kind(self) -> str:
        """A word for the kernel's name."""
        return f"convolution_{self.size[0]}x{self.size[1]}x{self.inner}x{self.outer}"

    def fields(self, shape: Mapping[str, Field]) -> dict[str, Field]:
        """The fields of a driver's table, in its order: where the buffers are among the arguments, and `shape`."""
        place, operands = 2, {"x": (0, self.x[0]), "weight": (1, self.weight or 0)}
        for field in ("scale", "bias", "other"):
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
        height, width = call.size
        _, _, x_row, x_column = call.x
        rows = _Axis(height, x_row * call.stride[0], width * call.outer)
        columns = _Axis(width, x_column * call.stride[1], call.outer)
        # Tiles go along the axis that fills them.
        turn = width < MOST_ROWS and height > width and not any(call.padding)
        self.across, self.along = (columns, rows) if turn else (rows, columns)

    def text(self, unit: Unit) -> str:
        """The kernel, less what `unit` puts before it."""
        shape, tables, driver, count = self.plan(unit)
        types = {"runs": "int64_t", "tops": "int64_t", "pieces": "fb_piece"}
        texts = (f"static const {types[k]} {self.name}_{k}[] = {_written(t)};\n" for k, t in tables.items())
        v = unit.vector("f32", self._lanes(unit))
        return "".join(texts) + self.call.entry(unit, self.name, f"dense_{v}", driver, count, shape)

    def _lanes(self, unit: Unit) -> int:
        """Of vectors that a panel has whole ones of."""
        return math.gcd(max(unit.target.vector_bytes // 4, 1), self.call.columns)

    def plan(self, unit: Unit) -> tuple[dict[str, Field], dict[str, tuple[Any, ...]], str, int]:
        """The fields of the driver's table behind the buffers, what some of them point to, the driver's text, and how
        many parts there are to share out."""
        call, along, across, lanes = self.call, self.along, self.across, self._lanes(unit)
        vectors = call.columns // lanes
        tiles, panels = -(-along.size // tallest(unit, vectors)), -(-call.outer // call.columns)
        v = unit.vector("f32", lanes)
        rows, threads = call.batch * across.size, 1 if call.is_serial() else unit.target.threads
        products, reads = call.inner * math.prod(call.window) * call.columns, call.given[1] * call.inner * lanes
        parts = grid(rows, panels, threads, (along.size * products, call.stride[0] * reads, lanes * products))
        runs, pieces = self._made() if call.weight is not None else self._pieces()
        plain = call.attr == "none" and (call.scale, call.bias, call.other) == (None, None, None)
        padding, tops = self._padding(runs, max(p[3] for p in pieces), max(p[1] for p in pieces), tiles)
        shape: dict[str, Field] = {
            "row_parts": parts[0], "panel_parts": parts[1], "rows": rows, "panels": panels, "band": self._band(unit),
            "outer": call.outer, "inner": call.inner, "places": math.prod(call.window), "tiles": tiles,
            "small": along.size // tiles, "spare": along.size % tiles, "lines": across.size,
            "pitch": (math.prod(call.size) * call.outer, across.out, along.out),
            "step": (call.x[1], across.step, along.step), **padding, "runs": f"{self.name}_runs",
            "tops": f"{self.name}_tops", "pieces": f"{self.name}_pieces", "parts": len(pieces),
            "tile": self._tiles(unit, lanes, vectors, tiles, panels),
            "window": "nullptr" if call.weight is None else self._window(unit, v, lanes),
            "finish": "nullptr" if plain else finish(unit, lanes, call.attr, call.scalars),
        }  # fmt: skip
        whole = tuple((*piece, 0, 0)[:6] for piece in pieces)
        tables = {"runs": tuple(runs), "tops": tuple(tops), "pieces": whole}
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

    def _made(self) -> tuple[list[int], list[tuple[int, ...]]]:
        """The same where panels are made on the way, of as many channels at a time as stay in cache.

        A part has two more numbers: the first of the channels, and how many, 0 where they are those of the part before.
        """
        call, (_, _, x_row, x_column) = self.call, self.call.x
        window = [(i * call.dilation[0] * x_row, j) for i in range(call.window[0]) for j in range(call.window[1])]
        places = [row + j * call.dilation[1] * x_column for row, j in window]
        stretches = -(-call.inner // (_FLOATS // (len(places) * call.columns)))
        if stretches == 1:
            runs, parts = self._pieces()
            return runs, [(*part, 0, 0 if k else call.inner) for k, part in enumerate(parts)]
        offsets: list[int] = []
        pieces: list[tuple[int, ...]] = []
        cuts = [call.inner * i // stretches for i in range(stretches + 1)]
        for a, b in pairwise(cuts):
            at = max(1, PIECE // (b - a))
            for k in range(0, len(places), at):
                stride = 0 if k else b - a
                pieces.append((k * (b - a), len(places[k : k + at]), len(offsets) + k, b - a, a, stride))
            offsets += [place + a for place in places]
        return offsets, pieces

    def _window(self, unit: Unit, v: str, lanes: int) -> str:
        """Name of the function that makes panels."""
        unit.helpers.setdefault(f"turn_{v}", transpose_helper(v, "float", lanes))
        text = _WINDOW.format(v=v, w=lanes, columns=self.call.columns, floats=_FLOATS)
        unit.helpers.setdefault(f"fb_window_{v}", text)
        return f"fb_window_{v}"

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
        """Rows of the images that are taken for all weights before the next ones: they stay in cache as panels do, or
        are enough to pay for making these."""
        rows = max(1, panel_floats(unit.target.cache) // max(1, self.across.step))
        return rows if self.call.weight is None else max(rows, -(-_PIXELS // self.along.size))

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
