"""Convolutions with packed constant weights as C++: matmuls whose rows of x are pixels, found where they are.

The products of one result are taken in runs: elements that lie side by side in the input, channels last, and in the
panel of weights; those of a row of the window where the window is not dilated. A tile is some results of one row by the
columns of a panel, as in `cpp_linear`. In wide images few tiles reach past the ends, and those copy what they read; the
input of others is padded by a loop before.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from firebrick.codegen.cpp_finish import finish
from firebrick.codegen.cpp_linear import MOST_ROWS, PIECE, REGISTERS, SERIAL
from firebrick.codegen.cpp_tiles import STORE
from firebrick.codegen.cpp_transpose import transpose_helper
from firebrick.errors import LoweringError
from firebrick.loops.ir import Extern, Ref
from firebrick.symbolic.expr import as_int

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from firebrick.codegen.cpp_writer import Unit

__all__ = ["OP", "Call", "Dense"]

OP = "firebrick::convolution.out"
_FLOATS = 1 << 16
"""Floats of a panel that a thread makes at a time: they stay in its second-level cache."""
_BAND, _PIXELS = 1 << 16, 512
"""Elements of the input that are used for all weights before the next ones are: they stay in cache. Pixels for which
panels are made anew."""

_TILE = (
    """\
template <int R, int V, int M>
static __attribute__((noinline)) void fb_pixels_{v}(const float* a, int64_t apart, const int64_t* at, int64_t runs,
    const float* b, int64_t k, const float* next, int64_t step, float* c, int64_t ldc, bool first) {{
  {v} sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) sum[r][j] = {v}{{}};
  for (int64_t h = 0; h < runs; h++) {{
    const float* from[(R + 2) / 3];
#pragma GCC unroll 8
    for (int r = 0; r < R; r += 3) from[r / 3] = a + at[h] + r * apart;
    for (int64_t p = 0; p < k; p++, b += {columns}, next += step) {{
      {v} row[V];
      __builtin_prefetch(next, 0, 2);
#pragma GCC unroll 4
      for (int j = 0; j < V; j++) row[j] = *(const {v}u*)(b + {w} * j);
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) {{
        const {v} x = {v}_of(from[r / 3][r % 3 * apart]);
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) sum[r][j] += x * row[j];
      }}
#pragma GCC unroll 8
      for (int r = 0; r < R; r += 3) from[r / 3]++;
    }}
  }}
"""
    + STORE
)
"""R pixels, `apart` elements apart, by V vectors of output channels, M lanes of the last one. What varies between the
shapes of a model is no parameter of the template, so that few are compiled; an address is one of five pointers plus
nothing, `apart` or twice that, as processors compute addresses."""

_PART = """\
static const int64_t {name}_runs[] = {{{runs}}};
{tables}static const int64_t {name}_pieces[][{numbers}] = {{{pieces}}};
static void {name}_part(void* const* args, const int64_t*, int64_t begin, int64_t end) {{
  const float* const x = (const float*)args[0] + {x_offset};
  const float* const packed = (const float*)args[1] + {weight_offset};
  const float* const scale = {scale};
  const float* const bias = {bias};
  const float* const other = {other};
  float* const out = (float*)args[{out}];
{patch}
  const int64_t row_from = {row_from}, row_to = {row_to};
  for (int64_t r0 = row_from; r0 < row_to; r0 += {band})
    for (int64_t p = {panel_from}; p < {panel_to}; p++)
      for (const int64_t (&piece)[{numbers}] : {name}_pieces) {{
        const int64_t runs = piece[1], part = piece[3], size = runs * part;
        const int64_t* const at = {name}_runs + piece[2];
        const int64_t n = {outer} - p * {columns} < {columns} ? {outer} - p * {columns} : {columns};
        const int64_t last = r0 + {band} < row_to ? r0 + {band} : row_to, some = (last - r0) * {tiles};
{weights}
        for (int64_t r = r0; r < last; r++)
          for (int64_t t = 0; t < {tiles}; t++, {advance}) {{{soon}
            const int64_t i = {width} * t / {tiles}, count = {width} * (t + 1) / {tiles} - i;
            const int64_t at_c = r / {rows} * {image} + r % {rows} * {c_row} + i * {ldc} + p * {columns};
            float* const c = out + at_c;
{find}
{tiles_text}
{finish}
          }}
      }}
}}
extern "C" void {name}(void* const* args, const int64_t* sizes) {{
  {start};
}}
"""

_PACKED = """\
        const float* const b = packed + p * {panel} + piece[0] * {columns};
        const int64_t ahead = ({columns} + some - 1) / some;
        const float* next = b + size * {columns};"""
_MADE = """\
        if (piece[5]) {{
          fb_window_{v}(packed + p * {panel} + piece[4] * {window}, {row}, n, piece[5], {window});
          stretch = piece[5] * {window}, turn = 0;
          const int64_t then = piece[4] + piece[5];
          soon = packed + p * {panel} + (then < {inner} ? then * {window} : {panel});
        }}
        const float* const b = fb_windows + piece[0] * {columns};
        const int64_t ahead = ({columns} + some - 1) / some;"""
_NEXT_PACKED, _NEXT_MADE = "next += size * ahead", "turn += size * ahead"
_SOON = """
            const int64_t to_row = turn / stretch;
            const float* const next = to_row < {columns} ? soon + to_row * {row} + turn % stretch : b;"""
"""Of weights that are not packed, tiles fetch the rows of the next stretch of channels, each some of one row."""

_WINDOW = """\
static __thread float fb_windows[{floats}] __attribute__((aligned(64)));
static __attribute__((noinline)) void fb_window_{v}(const float* w, int64_t stride, int64_t n, int64_t channels,
    int64_t window) {{
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
}}
"""
"""Some channels of a panel, from a weight that is as torch keeps it: rows of n weights, the places of the window
innermost, become rows of {columns} results, the channels innermost. Columns beyond n up to a whole vector are zeros."""

_INSIDE = """\
            const int64_t skip = 0, live = runs, *const places = at;
            const float* const a = x + r / {rows} * {x_image} + r % {rows} * {x_row} + i * {x_step};"""

_PADDED = """\
            const int64_t top = r % {rows} * {stride} - {pad_top}, left = i * {x_step} - {pad_left};
            const int64_t *const row = {name}_rows + piece[2], *const column = {name}_columns + piece[2];
            int64_t skip = 0, live = runs;
            while (live && top + row[skip] < 0) skip++, live--;
            while (live && top + row[skip + live - 1] >= {height}) live--;
            const float* const image = x + r / {rows} * {x_image};
            const bool border = left < 0 || left + (count - 1) * {x_step} + {reach} > {line};
            for (int64_t h = 0; border && h < live; h++)
              fb_clip(patch + h * {patch_row}, image + (top + row[skip + h]) * {x_line}, left + column[skip + h],
                      (count - 1) * {x_step} + part, {line});
            const int64_t* const places = border ? {name}_patch : at + skip;
            const float* const a = border ? patch : image + top * {x_line} + left;"""
"""Runs above and below the image are left out; a tile at its left or right end has its runs copied, with zeros."""

_CLIP = """\
static void fb_clip(float* to, const float* line, int64_t from, int64_t n, int64_t size) {
  const int64_t before = from < 0 ? (-from < n ? -from : n) : 0, most = size - from;
  const int64_t end = most < before ? before : most < n ? most : n;
  __builtin_memset(to, 0, before * sizeof(float));
  __builtin_memcpy(to + before, line + from + before, (end - before) * sizeof(float));
  __builtin_memset(to + end, 0, (n - end) * sizeof(float));
}
"""
"""n elements of a line of `size` elements, from `from` on, zeros outside."""


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
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[Call, tuple[str, ...]]:
        """What a call computes, and the names of its buffers in the order of the kernel's arguments."""
        x, packed, bias, other, outer, stride, padding, dilation, attr, scalars, *more = call.args
        scale, columns = more or (None, 0)
        (out,) = call.outs
        if not (isinstance(x, Ref) and isinstance(packed, Ref)) or out is None:
            raise LoweringError(f"{call.op} has arguments of another kind than its kernel")
        batch, inner, *given = map(as_int, x.shape)
        if inner > 1 and as_int(x.strides[1]) != 1:
            raise LoweringError(f"{call.op} wants the channels of a pixel side by side")
        dense = len(packed.shape) == 5
        window = packed.shape[2:4] if columns else packed.shape[1:3] if dense else packed.shape[:2]
        made = Call(
            batch,
            inner,
            int(outer),  # type: ignore[call-overload]
            (given[0], given[1]),
            tuple(map(as_int, buffers[out].shape[2:])),  # type: ignore[arg-type]
            as_int(packed.shape[4]) if dense else int(columns),  # type: ignore[call-overload]
            tuple(map(as_int, window)),  # type: ignore[arg-type]
            tuple(stride),  # type: ignore[arg-type]
            tuple(padding),  # type: ignore[arg-type]
            tuple(dilation),  # type: ignore[arg-type]
            (as_int(x.offset), *(as_int(x.strides[d]) for d in (0, 2, 3))),  # type: ignore[arg-type]
            as_int(packed.offset) if columns else None,
            as_int(scale.offset) if isinstance(scale, Ref) else None,
            as_int(bias.offset) if isinstance(bias, Ref) else None,
            as_int(other.offset) if isinstance(other, Ref) else None,
            str(attr),
            tuple(scalars),  # type: ignore[arg-type]
        )
        refs = [r.buffer for r in (x, packed, scale, bias, other) if isinstance(r, Ref)]
        return made, (*refs, out)

    @property
    def name(self) -> str:
        """Name of the kernel: equal calls have the same."""
        digest = hashlib.blake2s(repr(self).encode(), digest_size=3).hexdigest()
        kind = "convolution" if self.columns else "depthwise"
        height, width = self.size
        return f"{kind}_{height}x{width}x{self.inner}x{self.outer}_{digest}"

    def pointers(self) -> dict[str, Any]:
        """Texts of the arguments of the kernel that come after the weight."""
        place, found = 2, {}
        for name in ("scale", "bias", "other"):
            offset = getattr(self, name)
            found[name] = "nullptr" if offset is None else f"(const float*)args[{place}] + {offset}"
            place += offset is not None
        return {**found, "out": place, "x_offset": self.x[0], "weight_offset": self.weight or 0}

    def start(self, count: int) -> str:
        """The statement that runs `count` parts of the kernel."""
        work = self.batch * math.prod((*self.size, *self.window, self.outer)) * (self.inner if self.columns else 1)
        serial = f"{self.name}_part(args, sizes, 0, {count})"
        return serial if work <= SERIAL else f"fb_parallel({self.name}_part, args, sizes, {count})"


@dataclass(frozen=True, slots=True)
class _Axis:
    """One of the two axes of an image. step: elements of the input between neighbouring results."""

    size: int
    step: int
    out: int


class Dense:
    """The kernel of a convolution in which each result depends on all channels."""

    def __init__(self, call: Call) -> None:
        self.call = call
        height, width = call.size
        _, _, x_row, x_column = call.x
        rows = _Axis(height, x_row * call.stride[0], width * call.outer)
        columns = _Axis(width, x_column * call.stride[1], call.outer)
        # Tiles go along the axis that fills them.
        turn = width < MOST_ROWS and height > width and not any(call.padding)
        self.across, self.along = (columns, rows) if turn else (rows, columns)

    def text(self, unit: Unit, threads: int) -> str:
        """The kernel, less what `unit` puts before it."""
        call, along, across = self.call, self.along, self.across
        lanes = max(unit.target.vector_bytes // 4, 1)
        while call.columns % lanes:
            lanes //= 2
        vectors = call.columns // lanes
        registers = REGISTERS.get(unit.target.vector_bytes, 16)
        most = max(1, min(MOST_ROWS, (registers - vectors - 1) // vectors))
        tiles = -(-along.size // most)
        panels = -(-call.outer // call.columns)
        v = unit.vector("f32", lanes)
        unit.helpers.setdefault(f"fb_pixels_{v}", _TILE.format(v=v, w=lanes, columns=call.columns))
        by_rows = self._by_rows(panels, threads)
        count = call.batch * across.size if by_rows else panels
        name = call.name
        runs, pieces = self._made() if call.weight is not None else self._pieces()
        done = head = ""
        if call.attr != "none" or (call.scale, call.bias, call.other) != (None, None, None):
            scale = f"scale + p * {call.columns}" if call.scale is not None else "scale"
            bias = f"bias + p * {call.columns}" if call.bias is not None else "bias"
            other = "other + at_c" if call.other is not None else "other"
            last = f"&piece == {name}_pieces + {len(pieces) - 1}"
            done = f"            if ({last}) {name}_finish(c, {scale}, {bias}, {other}, count, n);"
            step = math.gcd(call.outer, call.columns)
            head = finish(unit, lanes, name, call.attr, call.scalars, step, along.out, along.out)
        return head + _PART.format(
            name=name,
            runs=", ".join(map(str, runs)),
            pieces=", ".join(f"{{{', '.join(map(str, piece))}}}" for piece in pieces),
            finish=done,
            row_from="begin" if by_rows else "0",
            row_to="end" if by_rows else str(call.batch * across.size),
            panel_from="0" if by_rows else "begin",
            panel_to=str(panels) if by_rows else "end",
            **self._weights(unit, v, lanes),
            band=self._band(),
            columns=call.columns,
            outer=call.outer,
            numbers=len(pieces[0]),
            tiles=tiles,
            width=along.size,
            rows=across.size,
            image=math.prod(call.size) * call.outer,
            c_row=across.out,
            ldc=along.out,
            **self._found(unit, runs, pieces, tiles),
            tiles_text="\n".join(self._tiles(v, lanes, vectors, tiles, panels)),
            start=call.start(count),
            **call.pointers(),
        )

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
                made = 0 if k else b - a
                pieces.append((k * (b - a), len(places[k : k + at]), len(offsets) + k, b - a, a, made))
            offsets += [place + a for place in places]
        return offsets, pieces

    def _weights(self, unit: Unit, v: str, lanes: int) -> dict[str, str]:
        """Texts of where the weights of a part are, and the next ones."""
        call, places = self.call, math.prod(self.call.window)
        row = places * call.inner
        sizes = {"panel": row * call.columns, "columns": call.columns}
        if call.weight is None:
            return {"weights": _PACKED.format(**sizes), "advance": _NEXT_PACKED, "soon": ""}
        unit.helpers.setdefault(f"turn_{v}", transpose_helper(v, "float", lanes))
        unit.helpers.setdefault(f"fb_window_{v}", _WINDOW.format(v=v, w=lanes, columns=call.columns, floats=_FLOATS))
        made = _MADE.format(v=v, row=row, window=places, inner=call.inner, **sizes)
        return {"weights": made, "advance": _NEXT_MADE, "soon": _SOON.format(row=row, **sizes)}

    def _found(self, unit: Unit, runs: list[int], pieces: Sequence[tuple[int, ...]], tiles: int) -> dict[str, str]:
        """Texts of how the input of a tile is found: where it is, or past the ends of the image."""
        call, along = self.call, self.along
        sizes = {"rows": self.across.size, "x_image": call.x[1], "x_row": self.across.step, "x_step": along.step}
        if not any(call.padding):
            made = "  const float* soon = packed;\n  int64_t stretch = 0, turn = 0;" if call.weight is not None else ""
            return {"tables": "", "patch": made, "find": _INSIDE.format(**sizes)}
        unit.helpers["fb_clip"] = _CLIP
        x_line, left, top = call.x[2], call.padding[0], call.padding[2]
        rows = [k * call.window[0] // len(runs) * call.dilation[0] for k in range(len(runs))]
        patch_row = (-(-along.size // tiles) - 1) * along.step + max(piece[3] for piece in pieces)
        most = max(piece[1] for piece in pieces)
        tables = {
            "rows": rows,
            "columns": [offset - row * x_line for offset, row in zip(runs, rows, strict=True)],
            "patch": [k * patch_row for k in range(most)],
        }
        find = _PADDED.format(
            **sizes,
            name=call.name,
            stride=call.stride[0],
            pad_top=top,
            pad_left=left * call.inner,
            height=call.given[0],
            line=call.given[1] * call.inner,
            x_line=x_line,
            reach=((call.window[1] - 1) * call.dilation[1] + 1) * call.inner,
            patch_row=patch_row,
        )
        texts = (f"static const int64_t {call.name}_{k}[] = {{{', '.join(map(str, t))}}};\n" for k, t in tables.items())
        return {"tables": "".join(texts), "patch": f"  float patch[{most * patch_row}];", "find": find}

    def _band(self) -> int:
        """Rows of the images that are taken for all weights before the next ones; enough to pay for making panels."""
        rows = max(1, _BAND // max(1, self.across.step))
        return rows if self.call.weight is None else max(rows, -(-_PIXELS // self.along.size))

    def _by_rows(self, panels: int, threads: int) -> bool:
        """Whether threads share out rows of the images, so that each reads all weights, rather than panels."""

        def waste(count: int) -> float:
            return -(-count // threads) * threads / count

        call = self.call
        rows = waste(call.batch * self.across.size)
        many = math.prod(call.window) * call.outer > math.prod((call.batch, *call.given))
        return rows < 0.9 * waste(panels) if many else rows <= 1.1 * waste(panels)

    def _tiles(self, v: str, lanes: int, vectors: int, tiles: int, panels: int) -> Iterable[str]:
        """Calls of the tile function for each size of tile that occurs."""
        call = self.call
        left = call.outer - (panels - 1) * call.columns
        used = -(-left // lanes)
        small = self.along.size // tiles
        sizes = [small, small + 1] if self.along.size % tiles else [small]
        widths = [(f"p < {panels - 1}", vectors, lanes), (f"p == {panels - 1}", used, left - (used - 1) * lanes)]
        if widths[1][1:] == (vectors, lanes) or panels == 1:
            widths = [("", *widths[1][1:])]
        weights = f"b + skip * part * {call.columns}"
        first = f"&piece == {call.name}_pieces"
        arguments = f"(a, {self.along.step}, places, live, {weights}, part, next, ahead, c, {self.along.out}, {first})"
        for condition, count, lanes_left in widths:
            for rows in sizes:
                tests = [t for t in (condition, f"count == {rows}" if len(sizes) > 1 else "") if t]
                test = f"if ({' && '.join(tests)}) " if tests else ""
                yield f"            {test}fb_pixels_{v}<{rows}, {count}, {lanes_left}>{arguments};"


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """One run, if each begins where the one before ends."""
    if all(sum(a) == b[0] for a, b in pairwise(runs)):
        return [(runs[0][0], sum(length for _, length in runs))]
    return runs
