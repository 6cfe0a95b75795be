"""Loops in the order of their strides, neighbours that every access walks as one made one.

Nothing here knows how wide a machine is; kinds of loops are given by the target (`Arrange`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from firebrick.ir.index.expr import INF, Expr, Var, var
from firebrick.ir.kernels.groups import Statement, Work
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Axis, Index, Reduce, Store
from firebrick.ir.loops.values import Rewriter, hint, loads_of, roots_of, walk
from firebrick.targets.tree_building import LoopPlan

STORED = 2
"""Weight of a store; that of a load is 1."""


@dataclass(frozen=True, slots=True)
class Access:
    """A distinct load or store of the work; `direct`: no part of its address comes from data."""

    index: Expr
    weight: int
    nbytes: int
    direct: bool


@dataclass(slots=True)
class Loops:
    """Work whose loops are in order: those that all statements share, then those of each set of inner axes."""

    statements: list[Statement]
    outer: list[Var]
    inner: dict[frozenset[Var], list[Var]]
    sizes: dict[Var, Expr]
    accesses: list[Access]


Arrange = Callable[[Loops], LoopPlan]
"""Gives ordered loops their kinds; may move loops."""


def serial(loops: Loops) -> LoopPlan:
    """Each loop as it is: a machine whose lanes run a program each."""
    inner = {d: tuple([(v, "serial") for v in chain]) for d, chain in loops.inner.items()}
    return LoopPlan(loops.sizes, tuple([(v, "serial") for v in loops.outer]), inner)


def order_loops(work: Work) -> Loops:
    """Order and collapse loops; statements come back in terms of the axes that are left."""
    statements, sizes = list(work.statements), dict(work.sizes)
    accesses = accesses_of(s.store for s in statements)
    domains = _domains(statements)
    rank = {v: outward(v, accesses) for v in sizes}
    ordered = sorted(work.outer, key=lambda v: rank[v], reverse=True)
    if any(s.store.mode != "set" or s.store.binds for s in statements):
        ordered = list(work.outer)  # the order in which elements that meet are updated, and in which indices are read
    inner = {d: sorted(d, key=lambda v: (rank[v], v.name), reverse=True) for d in domains if d}
    return _collapsed(Loops(statements, ordered, inner, sizes, accesses))


def accesses_of(stores: Iterable[Store]) -> list[Access]:
    """The stores, and the loads of what they store."""
    stores = list(stores)
    out = [Access(s.index, STORED, DTYPES[s.value.dtype].nbytes, not s.binds) for s in stores]
    return out + [Access(v.index, 1, DTYPES[v.dtype].nbytes, not v.binds) for v in loads_of(*stores)]


def outward(v: Var, accesses: Iterable[Access]) -> tuple[int, int]:
    """Sort key: loops with large strides come first, stores before loads."""
    stored = loaded = 0
    for a in accesses:
        stride = a.index.coeff(v)
        step = abs(hint(stride)) if stride is not None else 1
        if a.weight == STORED:
            stored = max(stored, step)
        else:
            loaded += step
    return stored, loaded


def apart(statements: Sequence[Statement]) -> Callable[[Var], bool]:
    """Whether different iterations of a loop surely update different elements: the loop may be moved or shared out."""
    updates = [s.store.index for s in statements if s.store.mode != "set" or s.store.binds]
    return lambda v: all(_recovers(e, v) for e in updates)


def _recovers(e: Expr, v: Var) -> bool:
    """Whether a variable follows from the value of an index: it is a digit of a number of mixed radix.

    64*x0 + 8*i0 + i1 with i0 < 8, i1 < 8: each of them does.
    """
    own, inner, outer = 0, v.lo, 0
    for atom, factor in e.terms:
        if not isinstance(atom, Var) or atom.lo != 0 or factor <= 0 or atom.hi >= INF:
            return False
        if atom is v:
            own = factor
    for atom, factor in e.terms:
        if atom is not v and factor <= own:
            inner += factor * atom.hi
        elif atom is not v:
            outer = math.gcd(outer, factor)
    return own > inner and (not outer or own * v.hi + inner < outer)


def _domains(statements: list[Statement]) -> list[frozenset[Var]]:
    folds = [v for v in walk(s.store.value for s in statements) if isinstance(v, Reduce)]
    return list(dict.fromkeys([*(s.inner for s in statements), *(frozenset(a.var for a in v.axes) for v in folds)]))


def _collapsed(loops: Loops) -> Loops:
    """One loop of neighbours that every access walks as one: x[128*i + j] -> x[k]."""
    statements, sizes = loops.statements, loops.sizes
    values = walk(roots_of(*(s.store for s in statements)))
    exprs = list({a.index for a in loops.accesses} | {v.expr for v in values if isinstance(v, Index)})
    chains = [loops.outer, *loops.inner.values()]
    # A position over reduced axes counts in their order, which merging must keep.
    rows = _positions(statements)
    for chain in chains:
        k = 0
        while k + 1 < len(chain):
            a, b = chain[k], chain[k + 1]
            if not _same_chains(a, b, chains) or not _keeps_rows(a, b, rows) or not _joins(exprs, a, b, sizes[b]):
                k += 1
                continue
            size = sizes[a] * sizes[b]
            new = var(f"{a.name}{b.name}", 0, size.hi - 1, size)
            sizes = {**sizes, new: size}
            rewrite = _joiner(a, b, new, size)
            exprs = list({rewrite.index(e) for e in exprs})
            statements = [_rejoin(s, rewrite, a, b, new) for s in statements]
            rows = _positions(statements)
            for c in chains:
                if a in c:
                    c[c.index(a) : c.index(a) + 2] = [new]
    return Loops(
        statements, loops.outer, {frozenset(c): c for c in chains[1:]}, sizes, accesses_of(s.store for s in statements)
    )


def _positions(statements: list[Statement]) -> list[Reduce]:
    """Reductions that give positions."""
    values = walk(s.store.value for s in statements)
    return [r for r in values if isinstance(r, Reduce) and r.name.startswith("arg")]


def _same_chains(a: Var, b: Var, chains: list[list[Var]]) -> bool:
    return all((a in c) == (b in c) and (a not in c or c.index(b) == c.index(a) + 1) for c in chains)


def _keeps_rows(a: Var, b: Var, rows: list[Reduce]) -> bool:
    orders = ([x.var for x in r.axes] for r in rows)
    return all(a not in o or o[o.index(a) : o.index(a) + 2] == [a, b] for o in orders)


def _joins(exprs: list[Expr], a: Var, b: Var, size: Expr) -> bool:
    for e in exprs:
        free = e.vars()
        if a in free or b in free:
            x, y = e.coeff(a), e.coeff(b)
            if x is None or y is None or x is not y * size:
                return False
    return True


def _joiner(a: Var, b: Var, new: Var, size: Expr) -> Rewriter:
    def index(e: Expr) -> Expr:
        if b not in e.vars():
            return e
        x, y = e.coeff(a), e.coeff(b)
        assert x is not None
        assert y is not None
        return e - x * a - y * b + y * new

    def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        names = [x.var for x in old]
        if b not in names:
            return old
        return tuple([Axis(new, size) if x.var is a else x for x in old if x.var is not b])

    return Rewriter(index, None, axes)


def _rejoin(s: Statement, rewrite: Rewriter, a: Var, b: Var, new: Var) -> Statement:
    return Statement(s.inner - {a, b} | {new} if a in s.inner else s.inner, rewrite.store(s.store), s.late)
