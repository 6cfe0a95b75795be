"""What becomes of ordered loops on a CPU: lanes of vectors, tiles of lanes, and iterations shared out among threads."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import TypeGuard

from firebrick.ir.index.expr import ONE, ZERO, Expr, Var
from firebrick.ir.kernels.groups import Statement
from firebrick.ir.loops.program import Load, Op, Scan, Store
from firebrick.ir.loops.scalar_ops import SCALAR_OPS
from firebrick.ir.loops.values import hint, walk
from firebrick.targets.tree_building import LoopPlan
from firebrick.targets.tree_order import Access, Loops, apart

PARALLEL_WORK = 150_000
"""Work, counted in additions, that is worth sharing out among threads."""
NEAR_STRIDES = (-1, 2, 3, 4)
"""Distances of elements that lanes read by whole loads, from which they are picked."""


def lane_plan(loops: Loops, vector_bytes: int) -> LoopPlan:
    """Which loop goes to the lanes of vectors, and which are shared out among threads."""
    statements, outer, inner = loops.statements, loops.outer, loops.inner
    sizes, accesses = loops.sizes, loops.accesses
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
    around = tuple([(v, kinds.get(v, "serial")) for v in outer])
    inside = {d: tuple([(v, kinds.get(v, "serial")) for v in chain]) for d, chain in inner.items()}
    return LoopPlan(sizes, around, inside, frozenset(parallel), lanes if "tile" in kinds.values() else 1)


def _score(v: Var, accesses: list[Access]) -> float:
    """How well iterations of `v` fit the lanes of a vector."""
    score = 0.0
    for a in accesses:
        if v not in a.index.vars():
            continue
        stride = a.index.coeff(v)
        if stride is not None and not stride.terms and stride.const == 1:
            score += a.weight
        elif a.weight == 1 and a.direct and is_near(stride):
            score += a.weight / 4
        else:
            score -= 2 * a.weight
    return score


def is_near(stride: Expr | None) -> TypeGuard[Expr]:
    """Whether lanes read elements at this distance by whole loads, from which they are picked."""
    return stride is not None and not stride.terms and stride.const in NEAR_STRIDES


def _slides(tile: Var, inner: dict[frozenset[Var], list[Var]], accesses: list[Access]) -> bool:
    """Whether windows of neighbours are folded: lanes along the loop over them need no folding across lanes."""
    folded = frozenset().union(*inner)
    met = [a for a in accesses if tile in a.index.vars()]
    near = all(a.direct and (a.index.coeff(tile) is ONE or is_near(a.index.coeff(tile))) for a in met)
    return near and any(not folded.isdisjoint(a.index.vars()) for a in met)


def _rows(tile: Var, statements: list[Statement]) -> bool:
    """Whether rows at places from data are folded into one: lanes along them load neighbours."""
    for v in walk(s.store.value for s in statements):
        if isinstance(v, Load) and v.binds and v.index.coeff(tile) is ONE:
            loads = [x for x in walk([b for _, b in v.binds]) if isinstance(x, Load)]
            return bool(loads) and not any(tile in x.index.vars() for x in loads)
    return False


def _lanes_update(updates: list[Store], v: Var) -> bool:
    """Whether iterations of a loop update neighbouring elements of types that lanes hold."""
    return all(
        s.index.coeff(v) is ONE
        and s.value.dtype not in ("bf16", "f16", "b8")
        and not any(v in x.index.vars() for x in walk([b for _, b in s.binds]) if isinstance(x, Load))
        for s in updates
    )


def _turned(outer: list[Var], sizes: dict[Var, Expr], accesses: list[Access], lanes: int) -> tuple[Var, Var] | None:
    """Two loops of a copy that transposes: lanes go across what is read, along which the other loop goes."""
    stores = [a for a in accesses if a.weight == 2]
    for across in outer:
        if hint(sizes[across]) < lanes or not all(a.direct and a.index.coeff(across) is ONE for a in stores):
            continue
        for a in accesses:
            if a.weight == 2 or not a.direct:
                continue
            step = a.index.coeff(across)
            if step is None or step is ZERO or step is ONE or is_near(step):
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
    *chains, around = (math.prod(hint(sizes[v]) for v in loops) for loops in (*inner.values(), outer))
    return max(chains, default=1) * around * each
