"""The plan of a kernel: tiles that programs of a grid work on, as frozen data.

A program works on one tile: a block of iterations in each dimension. Loops of a group that all its statements share
are flattened into dimensions of the grid; loops that reductions fold, and those that only some stores have, are inner
dimensions, which a program holds whole or walks block by block. Work is done in phases: a phase goes along one inner
dimension (or none), folds values into names that later phases read, and stores.

    body warps 4
      x in 1000 grid 1, r0 in 768 whole 1024
      over r0
        fold f0 = max(a0[768*x + r0])
      over r0
        fold f1 = sum(exp(a0[768*x + r0] - f0[0]))
      over r0
        a1[768*x + r0] = exp(a0[768*x + r0] - f0[0]) / f1[0]

Indices are written in the flat variables of dimensions, so that x//8 and x%8 are what two loops have become.
"""

from __future__ import annotations

from dataclasses import dataclass

from firebrick.ir.index.expr import ONE, ZERO, Expr, Var, floordiv, product, total
from firebrick.ir.loops.program import Reduce, Store, Value, contiguous_strides

GRID, WHOLE, LOOP = "grid", "whole", "loop"


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a tile: `var` is below `size`, and a program has `block` (a power of two) of its values.

    kind: "grid" (programs share them out), "whole" (one block holds all) or "loop" (a program walks block by block).
    """

    var: Var
    size: Expr
    block: int
    kind: str

    @property
    def masked(self) -> bool:
        """Whether a block may reach beyond the size."""
        return (self.size % self.block) is not ZERO


@dataclass(frozen=True, slots=True)
class Fold:
    """`value` folded over the phase's dimension by a row of `loops.ops.REDUCTIONS`; the result is read as name[0].

    position: of an element among those that are folded, for argmax and argmin.
    """

    name: str
    reduction: str
    value: Value
    position: Expr = ZERO


@dataclass(frozen=True, slots=True)
class Online:
    """The greatest `value`, read as best[0], and the sum of exp(value - best), read as total[0], in one pass.

    finite: an infinite best counts as 0 in the sum, as in logsumexp.
    """

    best: str
    total: str
    value: Value
    finite: bool


@dataclass(frozen=True, slots=True)
class Phase:
    """Work along the inner dimension of that number, or along none (-1)."""

    dim: int
    items: tuple[Fold | Online | Store, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """Programs that do the same phases. grid: dimensions shared out, the last of them fastest. inner: the others."""

    grid: tuple[Dim, ...]
    inner: tuple[Dim, ...]
    phases: tuple[Phase, ...]

    @property
    def programs(self) -> Expr:
        """How many there are."""
        return product(-floordiv(-d.size, d.block) for d in self.grid)


@dataclass(frozen=True, slots=True)
class Body:
    """A kernel: one part, or several side by side, each with its share of the grid.

    warps: of each program. wide: whether indices need 64 bits.
    """

    parts: tuple[Part, ...]
    warps: int
    wide: bool = False


def position_of(r: Reduce) -> Expr:
    """The number of an element among those that are folded."""
    strides = contiguous_strides([a.size for a in r.axes])
    return total(a.var * step for a, step in zip(r.axes, strides, strict=True))


def dims_of(axes: tuple[tuple[Var, Expr], ...], flat: Var) -> dict[Var, Expr]:
    """Loops, outermost first, in terms of the one dimension that they are flattened into."""
    subs: dict[Var, Expr] = {}
    inside: Expr = ONE
    for k, (v, size) in enumerate(reversed(axes)):
        part = floordiv(flat, inside)
        subs[v] = part if k == len(axes) - 1 else part % size
        inside = inside * size
    return subs
