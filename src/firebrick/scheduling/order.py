"""Loop order, vector axis and collapsing of axes, chosen from the strides of all accesses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from firebrick.loops.dtypes import DTYPES
from firebrick.loops.ir import Axis, Index, Load, Op, Reduce, Scan, Store
from firebrick.loops.ops import SCALAR_OPS
from firebrick.loops.tree import NEAR_STRIDES, PARALLEL_WORK
from firebrick.scheduling.build import LoopPlan, Statement
from firebrick.scheduling.values import Rewriter, walk
from firebrick.symbolic.expr import INF, ONE, ZERO, Expr, Var, var

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["hint", "plan_loops"]

_GUESS = 193
"""What a symbolic size counts as where sizes are compared."""


def hint(e: Expr) -> int:
    """The value of a size or stride, symbols taken as a middling number."""
    return e.evaluate({v.name: _GUESS for v in e.vars()}) if e.terms else e.const


@dataclass(frozen=True, slots=True)
class _Access:
    index: Expr
    weight: int  # 1 a load, 2 a store
    nbytes: int
    direct: bool


def _accesses(statements: Iterable[Statement]) -> list[_Access]:
    out = []
    values = []
    for s in statements:
        store = s.store
        out.append(_Access(store.index, 2, DTYPES[store.value.dtype].nbytes, not store.binds))
        values.append(store.value)
        values.extend(b for _, b in store.binds)
    for v in walk(values):
        if isinstance(v, Load):
            out.append(_Access(v.index, 1, DTYPES[v.dtype].nbytes, not v.binds))
    return out


def _score(v: Var, accesses: list[_Access]) -> float:
    """How well iterations of `v` fit the lanes of a vector."""
    score = 0.0
    for a in accesses:
        if v not in a.index.vars():
            continue
        stride = a.index.coeff(v)
        if stride is not None and not stride.terms and stride.const == 1:
            score += a.weight
        elif a.weight == 1 and a.direct and _is_near(stride):
            score += a.weight / 4
        else:
            score -= 2 * a.weight
    return score


def _is_near(stride: Expr | None) -> bool:
    return stride is not None and not stride.terms and stride.const in NEAR_STRIDES


def _outward(v: Var, accesses: list[_Access]) -> tuple[int, int]:
    """Sort key: axes with large strides come first."""
    stored = loaded = 0
    for a in accesses:
        stride = a.index.coeff(v)
        step = hint(stride) if stride is not None else 1
        if a.weight == 2:
            stored = max(stored, abs(step))
        else:
            loaded += abs(step)
    return stored, loaded


def plan_loops(
    statements: list[Statement], outer: Sequence[Var], sizes: dict[Var, Expr], vector_bytes: int
) -> tuple[list[Statement], LoopPlan]:
    """Order and collapse loops; statements come back in terms of the axes that are left."""
    accesses = _accesses(statements)
    domains = _domains(statements)
    rank = {v: _outward(v, accesses) for v in sizes}
    ordered = sorted(outer, key=lambda v: rank[v], reverse=True)
    if any(s.store.mode != "set" or s.store.binds for s in statements):
        ordered = list(outer)  # the order in which elements that meet are updated, and in which indices are read
    inner = {d: sorted(d, key=lambda v: (rank[v], v.name), reverse=True) for d in domains if d}
    statements, ordered, inner, sizes = _collapse(statements, ordered, inner, sizes, accesses)
    accesses = _accesses(statements)
    plan = _choose(statements, ordered, inner, sizes, accesses, vector_bytes)
    return statements, plan


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
    found: dict[frozenset[Var], None] = {s.inner: None for s in statements}
    for v in walk(s.store.value for s in statements):
        if isinstance(v, Reduce):
            found[frozenset(a.var for a in v.axes)] = None
    return list(found)


def _collapse(
    statements: list[Statement],
    outer: list[Var],
    inner: dict[frozenset[Var], list[Var]],
    sizes: dict[Var, Expr],
    accesses: list[_Access],
) -> tuple[list[Statement], list[Var], dict[frozenset[Var], list[Var]], dict[Var, Expr]]:
    """Make one loop of neighbours that every access walks as one: x[128*i + j] -> x[k]."""
    exprs = list({a.index for a in accesses} | set(_index_values(statements)))
    chains = [outer, *inner.values()]
    # A position over reduced axes counts in their order, which merging must keep.
    rows = _positions(statements)
    joined = False
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
            joined = True
            rewrite = _joiner(a, b, new, size)
            exprs = list({rewrite.index(e) for e in exprs})
            statements = [_rejoin(s, rewrite, a, b, new) for s in statements]
            rows = _positions(statements)
            for c in chains:
                if a in c:
                    c[c.index(a) : c.index(a) + 2] = [new]
    if not joined:
        return statements, outer, inner, sizes
    return statements, outer, {frozenset(c): c for c in chains[1:]}, sizes


def _positions(statements: list[Statement]) -> list[Reduce]:
    """Reductions that give positions."""
    values = walk(s.store.value for s in statements)
    return [r for r in values if isinstance(r, Reduce) and r.name.startswith("arg")]


def _index_values(statements: list[Statement]) -> list[Expr]:
    roots = [s.store.value for s in statements] + [b for s in statements for _, b in s.store.binds]
    return [v.expr for v in walk(roots) if isinstance(v, Index)]


def _same_chains(a: Var, b: Var, chains: list[list[Var]]) -> bool:
    return all((a in c) == (b in c) and (a not in c or c.index(b) == c.index(a) + 1) for c in chains)


def _keeps_rows(a: Var, b: Var, rows: list[Reduce]) -> bool:
    for r in rows:
        order = [x.var for x in r.axes]
        if a in order and order[order.index(a) : order.index(a) + 2] != [a, b]:
            return False
    return True


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
    store = s.store
    binds = tuple([(v, rewrite(x)) for v, x in store.binds])
    made = Store(store.buffer, rewrite.index(store.index), rewrite(store.value), store.mode, binds)
    return Statement(s.inner - {a, b} | {new} if a in s.inner else s.inner, made, s.late)


def _widest(statements: list[Statement]) -> int:
    """Bytes of the widest type that lanes compute with."""
    values = walk(s.store.value for s in statements)
    return max((DTYPES[v.dtype].nbytes for v in values if not isinstance(v, Index)), default=4)


def _choose(
    statements: list[Statement],
    outer: list[Var],
    inner: dict[frozenset[Var], list[Var]],
    sizes: dict[Var, Expr],
    accesses: list[_Access],
    vector_bytes: int,
) -> LoopPlan:
    lanes = max(1, vector_bytes // 4)
    scores = {v: _score(v, accesses) for v in {*outer, *(v for c in inner.values() for v in c)}}
    # Iterations of a loop that something runs along can't be lanes.
    ordered = {v.var for v in walk(s.store.value for s in statements) if isinstance(v, Scan)}
    scores.update(dict.fromkeys(ordered, -math.inf))
    for v, s in scores.items():
        if s > 0 and hint(sizes[v]) * 2 < lanes:
            scores[v] = s / 8
    free = apart(statements)
    updates = [s.store for s in statements if s.store.mode != "set" or s.store.binds]
    atomic = bool(updates)
    tile = max(outer, key=lambda v: scores[v], default=None)
    best_inner = max((scores[v] for c in inner.values() for v in c), default=0.0)
    kinds: dict[Var, str] = {}
    turned = _turned(outer, sizes, accesses, lanes) if not inner and lanes > 1 and not atomic else None
    if lanes == 1 or (atomic and inner):
        pass
    elif atomic:
        lanes_of = [v for v in outer if free(v) and scores[v] > 0 and _lanes_update(updates, v)]
        if lanes_of:
            last = max(lanes_of, key=lambda v: scores[v])
            outer.remove(last)
            outer.append(last)
            kinds[last] = "vector"
    elif turned is not None:
        across, along = turned
        outer.remove(across)
        outer.remove(along)
        outer += [across, along]
        kinds[across] = "tile"
    elif inner and (
        tile is None
        or scores[tile] <= 0
        or (best_inner >= 1 and not (_slides(tile, inner, accesses) or _rows(tile, statements)))
    ):
        for chain in inner.values():
            best = max(chain, key=lambda v: scores[v])
            if scores[best] > 0:
                chain.remove(best)
                chain.append(best)
                kinds[best] = "vector"
    elif tile is not None and scores[tile] > 0:
        outer.remove(tile)
        outer.append(tile)
        kinds[tile] = "tile" if inner else "vector"
    parallel: set[Var] = set()
    # With symbolic sizes the kernel itself decides when it runs.
    symbolic = any(e.terms for e in sizes.values())
    if symbolic or _work(statements, outer, inner, sizes) >= PARALLEL_WORK:
        shared = outer[:-1] if turned else outer
        parallel.update(takewhile(free, shared))
        if not atomic and not ordered and not outer and len(inner) == 1:
            parallel.update(chain[0] for chain in inner.values())
    return LoopPlan(
        sizes,
        tuple([(v, kinds.get(v, "serial")) for v in outer]),
        {d: tuple([(v, kinds.get(v, "serial")) for v in chain]) for d, chain in inner.items()},
        frozenset(parallel),
        lanes if "tile" in kinds.values() else 1,
    )


def _slides(tile: Var, inner: dict[frozenset[Var], list[Var]], accesses: list[_Access]) -> bool:
    """Whether windows of neighbours are folded: lanes along the loop over them need no folding across lanes."""
    folded = frozenset().union(*inner)
    met = [a for a in accesses if tile in a.index.vars()]
    near = all(a.direct and (a.index.coeff(tile) is ONE or _is_near(a.index.coeff(tile))) for a in met)
    return near and any(not folded.isdisjoint(a.index.vars()) for a in met)


def _rows(tile: Var, statements: list[Statement]) -> bool:
    """Whether rows at places from data are folded into one: lanes along them load neighbours."""
    for v in walk(s.store.value for s in statements):
        if isinstance(v, Load) and v.binds and v.index.coeff(tile) is ONE:
            found = [x for x in walk([b for _, b in v.binds]) if isinstance(x, Load)]
            return bool(found) and not any(tile in x.index.vars() for x in found)
    return False


def _lanes_update(updates: list[Store], v: Var) -> bool:
    """Whether iterations of a loop update neighbouring elements of types that lanes hold."""
    return all(
        s.index.coeff(v) is ONE
        and s.value.dtype not in ("bf16", "f16", "b8")
        and not any(v in x.index.vars() for x in walk([b for _, b in s.binds]) if isinstance(x, Load))
        for s in updates
    )


def _turned(outer: list[Var], sizes: dict[Var, Expr], accesses: list[_Access], lanes: int) -> tuple[Var, Var] | None:
    """Two loops of a copy that transposes: lanes go across what is read, along which the other loop goes."""
    stores = [a for a in accesses if a.weight == 2]
    for across in outer:
        if hint(sizes[across]) < lanes or not all(a.direct and a.index.coeff(across) is ONE for a in stores):
            continue
        for a in accesses:
            if a.weight == 2 or not a.direct:
                continue
            step = a.index.coeff(across)
            if step is None or step is ZERO or step is ONE or _is_near(step):
                continue
            for along in outer:
                if along is not across and a.index.coeff(along) is ONE and hint(sizes[along]) >= lanes // 2:
                    return across, along
    return None


def _work(
    statements: list[Statement], outer: list[Var], inner: dict[frozenset[Var], list[Var]], sizes: dict[Var, Expr]
) -> int:
    """Price of all iterations, in additions."""
    each = len(statements)
    for v in walk(s.store.value for s in statements):
        each += SCALAR_OPS[v.name].cost if isinstance(v, Op) else 1 if isinstance(v, Load) else 0
    most = max((_volume(chain, sizes) for chain in inner.values()), default=1)
    return most * _volume(outer, sizes) * each


def _volume(loops: list[Var], sizes: dict[Var, Expr]) -> int:
    result = 1
    for v in loops:
        result *= hint(sizes[v])
    return result
