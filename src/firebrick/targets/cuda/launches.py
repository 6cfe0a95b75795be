"""A group as launches: one kernel, or several where its reductions are split over programs, in canonical names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from firebrick.ir.index.expr import Expr, Var, total, var
from firebrick.ir.kernels.groups import GroupPlan, PlannedLaunch, Work
from firebrick.ir.kernels.schedule import Param
from firebrick.ir.loops.program import Index, Load, Reduce, Store
from firebrick.ir.loops.values import roots_of, values_of
from firebrick.targets.cuda.facts import CardFacts
from firebrick.targets.cuda.planner import Terms, plan_tiles
from firebrick.targets.cuda.split_reductions import split_folds
from firebrick.targets.cuda.tile import Body, Fold, Online, Part, Phase


def plan_group(work: Work, card: CardFacts) -> GroupPlan:
    """The launches of a group."""
    works, pads = split_folds(work, card)
    bodies = [_merged([plan_tiles(w, card) for w in together]) for together in works]
    return GroupPlan(tuple([canonical(b, work.numbers) for b in bodies]), pads)


def beside(steps: list[PlannedLaunch]) -> PlannedLaunch:
    """One launch that does the work of several, none of which reads or writes what another one writes."""
    bodies, numbers = [], frozenset(a for s in steps for p, a in zip(s.params, s.args, strict=True) if p.number)
    for s in steps:
        names = {p.name: arg for p, arg in zip(s.params, s.args, strict=True)}
        symbols = {v.name: v for v in _symbols(s.body)}
        table = {symbols[f"s{k}"]: e for k, e in enumerate(s.sizes)}
        bodies.append(renamed(s.body, names, table))
    return canonical(_merged(bodies), numbers)


def _merged(bodies: list[Body]) -> Body:
    return Body(tuple([p for b in bodies for p in b.parts]), max(b.warps for b in bodies), any(b.wide for b in bodies))


# ---------------------------------------------------------------- names


def canonical(body: Body, numbers: frozenset[str] = frozenset()) -> PlannedLaunch:
    """Buffers a0, a1... and symbolic sizes s0, s1... in the order in which they appear; `numbers` go by value."""
    dtypes: dict[str, str] = {}
    written: set[str] = set()
    results: set[str] = set()
    for item in items_of(body):
        results |= {getattr(item, field, "") for field in ("name", "best", "total")}
        for v in values_of(*roots_of(item)):
            if isinstance(v, Load) and v.buffer not in results:
                dtypes.setdefault(v.buffer, v.dtype)
        if isinstance(item, Store):
            dtypes.setdefault(item.buffer, item.value.dtype)
            written.add(item.buffer)
    sizes = _symbols(body)
    table: dict[Var, Expr] = {v: var(f"s{k}", v.lo, v.hi) for k, v in enumerate(sizes)}
    names = {b: f"a{k}" for k, b in enumerate(dtypes)}
    params = tuple([Param(names[b], dtype, b in written, b in numbers) for b, dtype in dtypes.items()])
    kind = "parts" if len(body.parts) > 1 else "rows" if any(p.inner for p in body.parts) else "map"
    launch = tuple(dtypes), tuple(sizes), (total(p.programs for p in body.parts),), (("warps", body.warps),)
    return PlannedLaunch(kind, params, renamed(body, names, table), *launch)


def items_of(body: Body) -> Iterator[Fold | Online | Store]:
    """All that a body folds and stores."""
    for part in body.parts:
        for phase in part.phases:
            yield from phase.items


def _symbols(body: Body) -> list[Var]:
    """Symbolic sizes: variables that are no dimension, no loop and not bound to data."""
    places = [d.size for part in body.parts for d in (*part.grid, *part.inner)]
    own = {v for part in body.parts for v in _inner_vars(part)}
    for item in items_of(body):
        values = values_of(*roots_of(item))
        places += [
            v.expr if isinstance(v, Index) else v.index for v in (*values, item) if isinstance(v, Load | Index | Store)
        ]
        places += [a.size for v in values if isinstance(v, Reduce) for a in v.axes]
        own.update(x for v in (*values, item) if isinstance(v, Load | Store) for x, _ in v.binds)
    symbols = dict.fromkeys(v for e in places for v in sorted(e.vars(), key=lambda v: v.name))
    return [v for v in symbols if v not in own]


def renamed(body: Body, names: Mapping[str, str], table: Mapping[Var, Expr], values: Any = None) -> Body:
    """A body with other names of buffers, sizes by a table, and some values (in its own names) in place of others."""
    parts = []
    for part in body.parts:
        subs: dict[Var, Expr] = dict(table)
        for v in _inner_vars(part) if table else ():
            subs.setdefault(v, var(v.name, v.lo, v.hi, v.bound.subs(table) if v.bound is not None else None))
        terms = Terms(subs, values, names)
        i: Any = terms.index
        grid, inner = (tuple([replace(d, var=i(d.var), size=i(d.size)) for d in ds]) for ds in (part.grid, part.inner))
        phases = tuple([Phase(p.dim, tuple([_item(i, terms) for i in p.items])) for p in part.phases])
        parts.append(Part(grid, inner, phases))
    return Body(tuple(parts), body.warps, body.wide)


def _item(i: Fold | Online | Store, terms: Terms) -> Fold | Online | Store:
    if isinstance(i, Store):
        return terms.store(i)
    if isinstance(i, Online):
        return Online(i.best, i.total, terms(i.value), i.finite)
    return Fold(i.name, i.reduction, terms(i.value), terms.index(i.position))


def _inner_vars(part: Part) -> list[Var]:
    values = (v for phase in part.phases for v in values_of(*roots_of(*phase.items)))
    loops = [a.var for v in values if isinstance(v, Reduce) for a in v.axes]
    return [*(d.var for d in (*part.grid, *part.inner)), *loops]
