"""Matmuls of our own: where the rows of a result begin at odd places, the library's kernels store element by element.

`x @ y`, with a vector added to each row where the call has one. Both factors lie so that 16 bytes are loaded at once;
sums are of float32. Programs go through the result in strips of tiles, so that those that run at once share factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from firebrick.ir.index.expr import ONE, as_expr, floordiv
from firebrick.ir.kernels.groups import PlannedLaunch
from firebrick.ir.kernels.schedule import Param
from firebrick.ir.loops.program import Ref
from firebrick.targets.cuda.triton_functions import type_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firebrick.ir.index.expr import Expr
    from firebrick.ir.loops.program import Buffer, Extern
    from firebrick.targets.cuda.facts import CardFacts

_WIDE = 16
"""Bytes that a thread loads at once, and of whose multiples rows begin that the library stores quickly."""
_BYTES = {"f16": 2, "bf16": 2}
_STRIP = 8
"""Tiles of rows in a strip."""
_MERGED, _TWICE, _ROW_BY_ROW = 9_500_000, 32 << 20, 8
"""Results and bytes of weights up to which several matmuls are one; rows up to which they are none of matrices."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and steps of a program's tile, steps that are loaded ahead, and its warps."""

    rows: int
    columns: int
    step: int
    ahead: int
    warps: int


_FEW, _MANY = Tile(64, 128, 64, 4, 4), Tile(128, 128, 64, 4, 8)
"""For up to 64 rows, and for more: the fastest of twelve for 128, 1,024 and 4,096 rows on an H100."""


@dataclass(frozen=True, slots=True)
class Product:
    """The body of a kernel: rows (None: a symbolic size), columns and depth; the factors' strides; where they begin.

    starts: of x, y and of the vector that is added, which is None without one.
    """

    shape: tuple[int | None, int, int]
    x: tuple[int, int]
    y: tuple[int, int]
    starts: tuple[int, int, int | None]
    dtype: str
    tile: Tile

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return self.tile.warps


def plan_product(call: Extern, buffers: Mapping[str, Buffer], card: CardFacts) -> PlannedLaunch | None:
    """The kernel of a matmul that the library does slowly; None for others."""
    out = call.outs[0] if call.outs else None
    refs = [r for r in call.args if isinstance(r, Ref) and r.dtype is None]
    if call.op not in ("aten::mm.out", "aten::addmm.out") or call.kwargs or card.capability < 80 or out is None:
        return None
    dtype, names = buffers[out].dtype, [*dict.fromkeys(r.buffer for r in refs)]
    known = dtype in _BYTES and all(buffers[name].dtype == dtype for name in names)
    if not known or len(refs) < len(call.args) or len({*names, out}) <= len(refs):
        return None
    *added, x, y = refs
    rows, (depth, columns) = x.shape[0], y.shape
    vector = added[0] if added else None
    if vector is not None and (vector.shape != (columns,) or vector.strides != (ONE,)):
        return None
    if not all(e.is_const for e in (columns, depth, *x.strides, *y.strides, *(r.offset for r in refs))):
        return None
    n, k, whole = int(columns.const), int(depth.const), _WIDE // _BYTES[dtype]
    quick = _quick(x, *_strides(x), whole) and _quick(y, *_strides(y)[::-1], whole)
    if n % whole == 0 or not quick or not _pays(rows, n, k):
        return None
    tile, m = _tile(rows, card), int(rows.const) if rows.is_const else None
    starts = (_start(x), _start(y), None if vector is None else _start(vector))
    body = Product((m, n, k), _strides(x), _strides(y), starts, dtype, tile)
    read = [r.buffer for r in (x, y, *added)]
    params = tuple([Param(f"a{i}", dtype, name == out) for i, name in enumerate([*read, out])])
    grid = floordiv(rows + (tile.rows - 1), tile.rows) * -(-n // tile.columns)
    sizes = () if m is not None else (rows,)
    return PlannedLaunch("matmul", params, body, (*read, out), sizes, (as_expr(grid),), (("warps", tile.warps),))


def merges(rows: int, depth: int, columns: list[int], nbytes: int) -> bool:
    """Whether matmuls of one matrix by weights of `nbytes` together are done at once: each alone has too few tiles.

    On an H100, us, three and one: 128 x 768 by 768 x 3: 11.0, 4.5; 1,024 x 768 by the same: 18.4, 10.4; 128 x 2,048 by
    2,048 x 3: 18.7, 8.3; 4,096 x 768 by 768 x 3: 30.8, 24.7; but 4,096 x 2,048 by 5,504 x 2: 271, 296.
    """
    return rows > _ROW_BY_ROW and depth >= 64 and rows * sum(columns) <= _MERGED and nbytes <= _TWICE


def _quick(factor: Ref, other: int, one: int, whole: int) -> bool:
    """Whether what is summed over lies element beside element, in rows that begin at multiples of 16 bytes."""
    return one == 1 and other % whole == 0 and _start(factor) % whole == 0


def _pays(rows: Expr, n: int, k: int) -> bool:
    """Small ones are as fast in the library, whose kernels for few rows split the depth."""
    return n >= 1024 and k >= 64 and not (rows.is_const and rows.const < 16)


def _tile(rows: Expr, card: CardFacts) -> Tile:
    most = rows.const if rows.is_const else rows.hi
    tile = _FEW if most is not None and most <= _FEW.rows else _MANY
    return tile if (tile.rows + tile.columns) * tile.step * 2 * tile.ahead <= card.shared_bytes else _FEW


def _strides(factor: Ref) -> tuple[int, int]:
    a, b = factor.strides
    return int(a.const), int(b.const)


def _start(ref: Ref) -> int:
    return int(ref.offset.const)


def product_text(name: str, body: Product, waits: tuple[str, ...]) -> str:
    """The text of a kernel."""
    (m, n, k), tile = body.shape, body.tile
    vector = body.starts[2] is not None
    out = f"a{2 + vector}"
    rows = "s0" if m is None else str(m)
    params = [f"a{i}" for i in range(3 + vector)] + ["s0"] * (m is None)
    tail = k % tile.step != 0

    def load(place: str, inside: str) -> str:
        return f"tl.load({place}, {inside}, 0)" if tail else f"tl.load({place})"

    lines = [
        *waits,
        "pid = tl.program_id(0)",
        f"down = ({rows} + {tile.rows - 1}) // {tile.rows}",
        f"strip = pid // {_STRIP * -(-n // tile.columns)} * {_STRIP}",
        f"high = tl.minimum(down - strip, {_STRIP})",
        f"place = pid % {_STRIP * -(-n // tile.columns)}",
        f"m = (strip + place % high) * {tile.rows} + tl.arange(0, {tile.rows})",
        f"n = place // high * {tile.columns} + tl.arange(0, {tile.columns})",
        f"k = tl.arange(0, {tile.step})",
        f"row = tl.where(m < {rows}, m, 0).to(tl.int64)  # beyond the end the first row is read, and not stored",
        f"column = tl.where(n < {n}, n, 0).to(tl.int64)",
        f"x = a0 + {body.starts[0]} + row[:, None] * {body.x[0]} + k[None, :] * {body.x[1]}",
        f"y = a1 + {body.starts[1]} + k[:, None] * {body.y[0]} + column[None, :] * {body.y[1]}",
        f"total = tl.zeros(({tile.rows}, {tile.columns}), tl.float32)",
        f"for i in tl.range(0, {k}, {tile.step}, num_stages={tile.ahead}):",
        f"    left = {load('x', f'k[None, :] < {k} - i')}",
        f"    right = {load('y', f'k[:, None] < {k} - i')}",
        "    total = tl.dot(left, right, total)",
        f"    x += {tile.step * body.x[1]}",
        f"    y += {tile.step * body.y[0]}",
    ]
    if vector:
        lines.append(f"total += tl.load(a2 + {body.starts[2]} + column).to(tl.float32)[None, :]")
    lines += [
        f"there = (m[:, None] < {rows}) & (n[None, :] < {n})",
        f"tl.store({out} + row[:, None] * {n} + n[None, :], total.to({type_name(body.dtype)}), there)",
    ]
    return "\n".join(["@triton.jit", f"def {name}({', '.join(params)}):", *("    " + s for s in lines)])
