"""Matmuls of our own, with what is done to their results before they are stored, or with the depth in parts.

By default such a kernel is taken where the rows of a result begin at odd places, as the library's kernels store those
element by element; `max-autotune` measures tiles of any matmul (`targets.cuda.search`). Sums are of float32. Programs
go through the result in strips of tiles, so that those that run at once share factors. They don't start while the
kernel before them still runs: they would be where that leaves room, two on some multiprocessors and none on others.
Large ones load by descriptors of tensors (of 128 bytes, in memory that a launch brings along), a program for each
multiprocessor, which loads its next tile while it stores one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from firebrick.ir.index.expr import INF, ONE, ZERO, Expr, Var, as_expr, floordiv, product, total, var
from firebrick.ir.kernels.groups import PlannedLaunch
from firebrick.ir.kernels.schedule import Param
from firebrick.ir.kernels.tree import local
from firebrick.ir.loops.constructors import cast, op
from firebrick.ir.loops.program import Buffer, Extern, Load, Ref, Store, Value, contiguous_strides
from firebrick.ir.loops.values import hint, loads_of
from firebrick.targets.cuda.facts import CardFacts
from firebrick.targets.cuda.part_text import PartWriter
from firebrick.targets.cuda.planner import Terms
from firebrick.targets.cuda.scopes import Term
from firebrick.targets.cuda.tile import GRID, Dim, Part, Phase
from firebrick.targets.cuda.tiling import power_below

_WIDE, _STRIPS, _KEPT = 16, (8, 32), 6
"""Bytes that a thread loads at once, where rows begin that the library stores quickly; fewest and most tiles of rows in
a strip, and of which part of the level 2 cache their factor may take: it is read again for each tile of columns."""
_MAPS = 256
"""Bytes of a program's descriptors."""
_BYTES = {"f16": 2, "bf16": 2, "f32": 4}
_CALLS = {"aten::mm.out": 2, "aten::addmm.out": 3, "aten::bmm.out": 2}
"""Operator -> how many matrices it has."""
_MERGED, _TWICE, _ROW_BY_ROW = 9_500_000, 32 << 20, 8
"""Results and bytes of weights up to which several matmuls are one; rows up to which they are none of matrices."""
TOTAL = local("f32", "total")
"""An element of the product, in the values that a kernel stores."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and steps of a program's tile, steps that are loaded ahead, its warps, parts of the depth, and how
    many programs take tiles in turn, if not each has one, and tiles of rows in a strip."""

    rows: int
    columns: int
    step: int
    ahead: int
    warps: int
    parts: int = 1
    programs: int = 0
    strip: int = _STRIPS[0]

    def __str__(self) -> str:
        more = " in turn" * (self.programs > 0) + f" in {self.parts}" * (self.parts > 1)
        return f"{self.rows}x{self.columns}x{self.step}{more}"


_FEW, _MANY = Tile(64, 128, 64, 4, 4), Tile(128, 128, 64, 4, 8)
"""For up to 64 rows, and for more: the fastest of twelve for 128, 1,024 and 4,096 rows on an H100."""
LARGE = Tile(128, 256, 64, 3, 8), Tile(128, 128, 64, 4, 8)
"""Tiles that programs take in turn, for more than 512 rows and for fewer."""


@dataclass(frozen=True, slots=True)
class Product:
    """The body of a kernel. grid: matrices, rows and columns. x, y: a factor's name, where it begins, and its strides
    from matrix to matrix and along both dimensions. stores: of what is made of `TOTAL`, in the grid's variables."""

    grid: tuple[Dim, Dim, Dim]
    depth: int
    x: tuple[str, int, tuple[int, int, int]]
    y: tuple[str, int, tuple[int, int, int]]
    dtype: str
    tile: Tile
    stores: tuple[Store, ...]
    wide: bool
    warps: int


@dataclass(frozen=True, slots=True)
class Matmul:
    """A library call that a kernel of ours can do: its result, both factors and what is added, names and sizes."""

    out: str
    dtype: str
    refs: tuple[Ref, ...]
    buffers: tuple[str, ...]
    sizes: tuple[Expr, Expr, Expr]
    depth: int
    device: str

    def dims(self, tile: Tile) -> tuple[Dim, Dim, Dim]:
        """Dimensions of a grid of tiles."""
        blocks = zip("bmn", self.sizes, (1, tile.rows, tile.columns), strict=True)
        return tuple([Dim(var(v, 0, max(n.hi - 1, 0) if n.hi < INF else INF, n), n, b, GRID) for v, n, b in blocks])  # type: ignore[return-value]

    def place(self, tile: Tile) -> list[Expr]:
        """Matrix, row and column of an element in a grid's variables."""
        return [ZERO if d.size is ONE else d.var for d in self.dims(tile)]

    def finish(self, value: Value, place: Sequence[Expr]) -> Value:
        """An element of the result, of the one of the product, at a matrix, row and column."""
        for r in self.refs[2:]:
            at = r.offset + total(s * p for s, p in zip(r.strides[::-1], place[::-1], strict=False))
            value = op("add", value, cast(Load(self.dtype, r.buffer, at), "f32"))
        return cast(value, self.dtype)

    def flat(self, place: Sequence[Expr]) -> Expr:
        """Where an element of the result is."""
        return (place[0] * self.sizes[1] + place[1]) * self.sizes[2] + place[2]

    def plain(self, tile: Tile) -> Store:
        """The store of a result and nothing more."""
        place = self.place(tile)
        return Store(self.out, self.flat(place), self.finish(TOTAL, place))


def matmul_of(call: Extern, buffers: Mapping[str, Buffer], card: CardFacts) -> Matmul | None:
    """What a call multiplies; None for what kernels of ours don't do, such as float32 by parts as TF32."""
    out = buffers.get(call.outs[0] or "") if call.outs else None
    refs = [r for r in call.args if isinstance(r, Ref) and r.dtype is None]
    if out is None or call.kwargs or not len(refs) == len(call.args) == _CALLS.get(call.op) or card.capability < 80:
        return None
    *added, x, y = refs
    sizes, names, depth = [ONE, *out.shape][-3:], [r.buffer for r in refs], x.shape[-1]
    static = all(e.is_const for e in (sizes[0], sizes[2], depth, *(s for r in refs for s in (*r.strides, r.offset))))
    alike = out.dtype in _BYTES and out.name not in names and all(buffers[n].dtype == out.dtype for n in names)
    exact = out.dtype != "f32" or torch.get_float32_matmul_precision() == "highest"
    dense = out.strides == contiguous_strides(out.shape) and ZERO not in (sizes[0], sizes[2], depth)
    once = [(n, w) for r in added for n, w in zip(r.shape[::-1], sizes[::-1], strict=False) if n is not ONE]
    if not (static and alike and exact and dense) or any(n is not w for n, w in once):
        return None
    # One element along a dimension is read again and again.
    steps = [tuple([ZERO if n is ONE else s for n, s in zip(r.shape, r.strides, strict=True)]) for r in added]
    rest = [replace(r, strides=s) for r, s in zip(added, steps, strict=True)]
    every = (*names, out.name)
    return Matmul(out.name, out.dtype, (x, y, *rest), every, tuple(sizes), int(depth.const), out.device)  # type: ignore[arg-type]


def plan_product(call: Extern, buffers: Mapping[str, Buffer], card: CardFacts) -> PlannedLaunch | None:
    """The kernel of a matmul that the library does slowly; None for others."""
    mm = matmul_of(call, buffers, card)
    if mm is None or call.op == "aten::bmm.out" or mm.dtype == "f32" or any(len(r.shape) > 1 for r in mm.refs[2:]):
        return None
    whole, (_, rows, columns), (x, y, *_) = _WIDE // _BYTES[mm.dtype], mm.sizes, mm.refs
    # What is summed over lies element beside element, in rows that begin at multiples of 16 bytes.
    steps = [(*x.strides, x.offset), (*y.strides[::-1], y.offset)]
    quick = all(one is ONE and other.const % whole == at.const % whole == 0 for other, one, at in steps)
    # Small ones are as fast in the library, whose kernels for few rows split the depth.
    small = columns.const < 1024 or mm.depth < 64 or (rows.is_const and rows.const < 16)
    if columns.const % whole == 0 or not quick or small or x.buffer == y.buffer:
        return None
    tile = _FEW if rows.hi <= _FEW.rows or card.shared_bytes < 128 << 10 else _MANY
    large = LARGE[rows.hi <= 512]
    if tile is _MANY and takes_turns(mm, large, card):
        tile = in_turn(mm, large, card)
    return launch_of(mm, tile, (mm.plain(tile),))


def takes_turns(mm: Matmul, tile: Tile, card: CardFacts) -> bool:
    """Whether programs may take the tiles of a matmul in turn, and each gets some: elements of factors lie together in
    rows, or in columns, that begin at whole loads."""
    tiles = product(-floordiv(-n, d.block) for n, d in zip(mm.sizes, mm.dims(tile), strict=True))
    places = [(*sorted(int(s.const) for s in r.strides), int(r.offset.const)) for r in mm.refs[:2]]
    whole = all(p[0] == 1 < p[1] and p[1] % 8 == p[2] % 8 == 0 for p in places if len(p) == 3)
    short = mm.dtype != "f32" and len(places[0]) == 3 and card.capability >= 90
    return short and whole and hint(tiles) >= card.multiprocessors


def in_turn(mm: Matmul, tile: Tile, card: CardFacts) -> Tile:
    """Programs take such tiles in turn, in strips that are as high as the level 2 cache has room for: the other factor
    comes from memory once a strip. On an H100, us, 8 and 32 tiles: 4,096 x 50,304 x 768 497, 467; but 8,192 x 8,192 x
    8,192 1,444, 1,585."""
    most = card.level2 // (_KEPT * tile.rows * mm.depth * _BYTES[mm.dtype])
    return replace(tile, programs=card.multiprocessors, strip=max(_STRIPS[0], min(_STRIPS[1], power_below(most))))


def merges(rows: int, depth: int, columns: list[int], nbytes: int) -> bool:
    """Whether matmuls of one matrix by weights of `nbytes` together are done at once: each alone has too few tiles.
    On an H100, us, three and one: 128 x 768 by 768 x 3: 11.0, 4.5; 1,024 x 768 by the same: 18.4, 10.4; 128 x 2,048 by
    2,048 x 3: 18.7, 8.3; 4,096 x 768 by 768 x 3: 30.8, 24.7; but 4,096 x 2,048 by 5,504 x 2: 271, 296."""
    return rows > _ROW_BY_ROW and depth >= 64 and rows * sum(columns) <= _MERGED and nbytes <= _TWICE


def launch_of(mm: Matmul, tile: Tile, stores: Sequence[Store], wide: bool = False) -> PlannedLaunch:
    """The kernel that multiplies and does `stores`."""
    dims, (_, rows, _) = mm.dims(tile), mm.sizes
    dtypes = {r.buffer: mm.dtype for r in mm.refs[:2]}
    dtypes.update((v.buffer, v.dtype) for v in sorted(loads_of(*stores), key=lambda v: v.buffer) if v is not TOTAL)
    written = {s.buffer: s.value.dtype for s in stores}
    room = as_expr(_MAPS * tile.programs)
    pads = (Buffer(f"{mm.out}_maps", "u8", (room,), (ONE,), "temp", mm.device),) if tile.programs else ()
    written.update((p.name, p.dtype) for p in pads)
    names = {b: f"a{i}" for i, b in enumerate({**dtypes, **written})}
    params = tuple([Param(names[b], t, b in written) for b, t in {**dtypes, **written}.items()])
    table: dict[Var, Expr] = {}
    if not rows.is_const:  # sizes of a kernel have names of their own
        size = var("s0", 1, rows.hi)
        table = {dims[1].var: var("m", 0, INF, size)}
        dims = (dims[0], replace(dims[1], var=table[dims[1].var], size=size), dims[2])  # type: ignore[arg-type]
    terms = Terms(table, None, names)
    strides = [(0, *[int(s.const) for s in r.strides])[-3:] for r in mm.refs[:2]]
    x, y = ((names[r.buffer], int(r.offset.const), s) for r, s in zip(mm.refs, strides, strict=False))
    wide = wide or product(mm.sizes).hi * tile.parts >= 1 << 31
    body = Product(dims, mm.depth, x, y, mm.dtype, tile, tuple([terms.store(s) for s in stores]), wide, tile.warps)  # type: ignore[arg-type]
    grid = product(-floordiv(-n, d.block) for n, d in zip(mm.sizes, dims, strict=True)) * tile.parts
    rest = (rows,)[rows.is_const :], (as_expr(tile.programs or grid),), (("warps", tile.warps),)
    return PlannedLaunch("matmul", params, body, (*names,), *rest, pads=pads)  # type: ignore[arg-type]


class _Writer(PartWriter):
    """The lines of a kernel: the product, and then its stores."""

    def __init__(self, body: Product) -> None:
        super().__init__(Part(body.grid, (), (Phase(-1, body.stores),)), body.wide)
        self.body = body
        self.results["total"] = Term("total", frozenset(("m", "n")), int(body.tile.programs > 0))
        self.vars[var("part", 0, body.tile.parts - 1)] = Term("part")

    def _programs(self, pid: str) -> None:
        body, tile, (b, m, n) = self.body, self.body.tile, self.body.grid
        across = -(-n.size.const // tile.columns)
        rows = self.index(m.size).text + ".to(tl.int32)" * (tile.programs > 0 and not m.size.is_const)
        chunk = -(-body.depth // (tile.parts * tile.step)) * tile.step
        self.line(f"down = ({rows} + {tile.rows - 1}) // {tile.rows}")
        if tile.programs:
            loads = self._maps(rows)
            self.open(f"for pid in tl.range({pid}, down * {across}, {tile.programs}, flatten=True):")
        else:
            self.line(f"pid = {pid}")
        if b.size is not ONE or tile.parts > 1:
            self.line(f"outer, pid = pid // (down * {across}), pid % (down * {across})")
            self.line(f"part = outer % {tile.parts}")
        self._along(b, f"outer // {tile.parts}" if b.size is not ONE else "0")
        self.line(f"strip, place = pid // {tile.strip * across} * {tile.strip}, pid % {tile.strip * across}")
        self.line(f"high = tl.minimum(down - strip, {tile.strip})")
        for d, at in ((m, "(strip + place % high)"), (n, "(place // high)")):
            self._along(d, at + ".to(tl.int64)" * self.wide)
        self.line(f"total = tl.zeros(({tile.rows}, {tile.columns}), tl.float32)")
        if tile.programs:
            self.line(f"row, column = (strip + place % high) * {tile.rows}, (place // high) * {tile.columns}")
            self.open(f"for i in tl.range(0, {body.depth}, {tile.step}, num_stages={tile.ahead}):")
            self.line(f"total = tl.dot({loads[0]}, {loads[1]}, total)")
            self.close()
        else:
            self._factors("part * " + str(chunk) if tile.parts > 1 else "0", chunk)

    def _maps(self, rows: str) -> list[str]:
        """Write descriptors of both factors, whose elements lie together along the last dimension; texts of loads."""
        tile, depth, columns, loads = self.body.tile, str(self.body.depth), str(self.body.grid[2].size.const), []
        for name, (data, at, (_, *steps)), sizes, block, place in (
            ("left", self.body.x, [rows, depth], [tile.rows, tile.step], ["row", "i"]),
            ("right", self.body.y, [depth, columns], [tile.step, tile.columns], ["i", "column"]),
        ):
            turn = 1 if steps[1] == 1 else -1
            shape, at_once = ", ".join(sizes[::turn]), ", ".join(place[::turn])
            self.line(f"{name} = tl.make_tensor_descriptor({data} + {at}, [{shape}], {steps[::turn]}, {block[::turn]})")
            loads.append(f"{name}.load([{at_once}])" + ".T" * (turn < 0))
        return loads

    def _factors(self, begin: str, chunk: int) -> None:
        """The sum; beyond the end the first row is read, and not stored."""
        body, tile, depth = self.body, self.body.tile, self.body.depth
        (x, x_start, (xb, xm, xk)), (y, y_start, (yb, yk, yn)) = body.x, body.y
        whole = depth % tile.step == 0 and chunk * tile.parts == depth
        stop = f"tl.minimum({begin} + {chunk}, {depth})" if tile.parts > 1 else str(depth)
        precise = ', input_precision="ieee"' if body.dtype == "f32" else ""
        for name, d in (("row", body.grid[1]), ("column", body.grid[2])):
            v = d.var.name
            self.line(f"{name} = " + (f"tl.where({v}_in, {v}, 0).to(tl.int64)" if d.masked else f"{v}.to(tl.int64)"))
        batch = [f" + tl.cast(b, tl.int64) * {s}" * (s > 0) for s in (xb, yb)]
        self.line(f"k = ({begin} + tl.arange(0, {tile.step})).to(tl.int64)")
        self.line(f"x = {x} + {x_start}{batch[0]} + row * {xm} + k[None, :] * {xk}")
        self.line(f"y = {y} + {y_start}{batch[1]} + k[:, None] * {yk} + column * {yn}")
        self.open(f"for i in tl.range({begin}, {stop}, {tile.step}, num_stages={tile.ahead}):")
        for name, place, lanes in (("left", "x", "[None, :]"), ("right", "y", "[:, None]")):
            inside = "" if whole else f", (i + tl.arange(0, {tile.step})){lanes} < {depth}, 0"
            self.line(f"{name} = tl.load({place}{inside})")
        self.line(f"total = tl.dot(left, right, total{precise})")
        self.line(f"x, y = x + {tile.step * xk}, y + {tile.step * yk}")
        self.close()


def product_text(name: str, body: Product, waits: tuple[str, ...]) -> str:
    """The text of a kernel."""
    text = "\n".join("    " + s for s in (*waits[:1], *_Writer(body).lines("tl.program_id(0)")))
    names = [f"a{k}" for k in range(1 + max(map(int, re.findall(r"\ba(\d+)\b", text))) + (body.tile.programs > 0))]
    names += ["s0"] * (not body.grid[1].size.is_const)
    return f"@triton.jit\ndef {name}({', '.join(names)}):\n{text}"
