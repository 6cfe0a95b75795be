"""The loop tree of one kernel: what scheduling builds and code generation prints.

Values are those of `loops.ir`. A name that a kernel makes itself (a let, the result of an accumulator, an element of
row-local scratch) is read by a `Load` of that name, so a body needs no further vocabulary. Names are canonical:
parameters a0, a1...; loop variables i0, i1...; lets h0...; accumulators r0...; scratch t0...; sizes s0...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from firebrick.ir.index.expr import ZERO, Expr
from firebrick.ir.loops.program import Axis, Load, Store, Value
from firebrick.ir.loops.values import roots_of


@dataclass(frozen=True, slots=True)
class Let:
    """Name a value that is used more than once, or that inner loops would compute again."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Scratch:
    """Storage private to one iteration of the loop that contains it; `size` elements."""

    name: str
    dtype: str
    size: int


@dataclass(frozen=True, slots=True)
class Acc:
    """An accumulator of a reduction (a row of `loops.ops.REDUCTIONS`), started here, read after the loops that fold.

    dtype: that of the folded values; positions are read as i64. running: it is read in the loop, after each fold.
    """

    name: str
    reduction: str
    dtype: str
    running: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """Fold a value into an accumulator; `position` is the flat position over the folded axes for argmax and argmin."""

    acc: str
    value: Value
    position: Expr


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop.

    kind: how the target that planned it runs it, in its own words; "serial": one iteration after the other.
    parallel: iterations may run at once; directly nested parallel loops are shared out as one.
    """

    axis: Axis
    kind: str
    parallel: bool
    body: tuple[Stmt, ...]


Stmt = Let | Scratch | Acc | Fold | Loop | Store


def local(dtype: str, name: str, index: Expr = ZERO) -> Load:
    """The value of a let, an accumulator or an element of scratch."""
    return Load(dtype, name, index)


def all_statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Every statement of a tree, outer ones first."""
    for s in body:
        yield s
        if isinstance(s, Loop):
            yield from all_statements(s.body)


def loops_of(body: Iterable[Stmt]) -> Iterator[Loop]:
    """All loops of a tree, outer ones first."""
    return (s for s in all_statements(body) if isinstance(s, Loop))


def loop_sizes(body: Iterable[Stmt]) -> str:
    """Sizes of a tree's loops, each variable once: `[8, n]`."""
    sizes: dict[str, str] = {}
    for loop in loops_of(body):
        sizes.setdefault(loop.axis.var.name, loop.axis.size.show())
    return f"[{', '.join(sizes.values())}]"


def computed(s: Stmt) -> list[Value]:
    """The values that a statement computes itself."""
    return roots_of(s) if isinstance(s, Store) else [s.value] if isinstance(s, (Let, Fold)) else []
