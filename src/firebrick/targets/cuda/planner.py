"""From the statements of a group to tiles: which loops become which dimensions, and in which phases the work is done.

    for i in 1000                                        x in 1000 grid, r0 in 768 whole 1024
      t[i] = max(a[768*i + j] for j in 768)         ->   over r0: fold f0 = max(a0[768*x + r0])
      b[768*i + j] = a[768*i + j] - t[i], j in 768       over r0: a1[768*x + r0] = a0[768*x + r0] - f0[0]

Statements are closed: what one needs of another is in its value. So a group may always be taken apart, at the price of
computing something twice, and each reduction of a value is found in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from firebrick.ir.index.expr import INF, ONE, ZERO, Expr, Var, product, var
from firebrick.ir.kernels.groups import Statement, Work
from firebrick.ir.kernels.tree import local
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Axis, Index, Load, Op, Reduce, Scan, Store, Value
from firebrick.ir.loops.values import Rewriter, Table, children_of, hint, roots_of, values_of, walk
from firebrick.targets.cuda import tiling
from firebrick.targets.cuda.facts import CardFacts
from firebrick.targets.cuda.tile import GRID, LOOP, WHOLE, Body, Dim, Fold, Online, Part, Phase, dims_of, position_of
from firebrick.targets.tree_order import STORED, Access, accesses_of, outward

_SERIAL = 64
"""Elements up to which a fold of tensors that lie across it is done by each thread alone."""
_FEW = 16, 1 << 16
"""Elements whose loads a thread has under way at once, and results below which a card has threads for more."""

Domain = frozenset["Var"]


def extent(work: Work, loops: Iterable[Var]) -> int:
    """About how many iterations some loops have."""
    sizes = [work.sizes[v] for v in loops]
    return math.prod(n.hi if varies(work, n) else hint(n) for n in sizes)


def varies(work: Work, size: Expr) -> bool:
    """Whether a size depends on loops outside."""
    return not work.sizes.keys().isdisjoint(size.vars())


def plan_tiles(work: Work, card: CardFacts) -> Body:
    """The tiles of a group."""
    parts = [work]
    if not any(_folded(work, s) for s in work.statements):
        parts = _apart(work)
    planned = [_plan_part(p, card) for p in parts]
    warps = max(w for _, w in planned)
    return Body(tuple([p for p, _ in planned]), warps, _is_wide(planned))


class Terms(Rewriter):
    """Rewrites values in a tile's terms: variables by `subs`, buffers by `names`, and whole values by `known`."""

    def __init__(
        self,
        subs: Mapping[Var, Expr],
        known: Mapping[Value, Value] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._names, self._subs = names or {}, subs

        def load(v: Load) -> Value:
            return Load(v.dtype, self._names.get(v.buffer, v.buffer), v.index, v.binds)

        def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
            return tuple([Axis(self.index(a.var), self.index(a.size)) for a in old])  # type: ignore[arg-type]

        super().__init__(lambda e: e.subs(self._subs), load, axes, known)

    def store(self, s: Store, buffer: str = "") -> Store:
        """A store in the new terms."""
        return super().store(s, buffer or self._names.get(s.buffer, ""))


# ---------------------------------------------------------------- what statements do


def traffic_of(accesses: Sequence[Access]) -> tiling.Traffic:
    """What an iteration moves."""
    sizes = [a.nbytes for a in accesses] or [4]
    return tiling.Traffic(min(sizes), max(sizes), sum(a.weight < STORED for a in accesses))


def _folded(work: Work, s: Statement) -> bool:
    """Whether a statement needs dimensions inside of the grid."""
    serial = serial_folds(work)
    return any(isinstance(v, Scan) or (isinstance(v, Reduce) and v not in serial) for v in walk(roots_of(s.store)))


def serial_folds(work: Work) -> frozenset[Reduce]:
    """Reductions that each thread does alone: those inside of others' loops, and short ones across the tensors."""
    outer = frozenset(work.outer)
    facts = Table()
    buffers = set()
    inner = any(s.inner for s in work.statements)
    values = [v for s in work.statements for v in walk(roots_of(s.store))]
    below = {c for v in values if isinstance(v, Reduce) for c in walk([v.body]) if isinstance(c, Reduce)}
    symbols = frozenset(v for n in work.sizes.values() for v in n.vars())
    for v in values:
        if not isinstance(v, Reduce):
            continue
        free = facts(v).free - outer - symbols
        if free & work.sizes.keys() or (not inner and v not in below and _is_short(v, work)):
            buffers.add(v)
    # What is folded around a serial fold is folded in its turn.
    return frozenset(buffers)


def _is_short(v: Reduce, work: Work) -> bool:
    """Whether neighbours in memory belong to other results, and there are few elements to a result. What is scanned
    along is a dimension."""
    scans = any(isinstance(c, Scan) for c in walk([v.body]))
    if scans or not work.outer or any(varies(work, a.size) for a in v.axes):
        return False
    count = math.prod(hint(a.size) for a in v.axes)
    if count > (_SERIAL if extent(work, work.outer) >= _FEW[1] else _FEW[0]):
        return False
    loads = [a for a in accesses_of([Store("", ZERO, v.body)]) if a.weight < STORED and a.direct]
    folded = {a.var for a in v.axes}
    across = sum(a.nbytes for a in loads if any(a.index.coeff(o) is ONE for o in work.outer))
    along = sum(
        a.nbytes for a in loads if any(a.index.coeff(r) is ONE for r in folded) and not _windows(a.index, work, folded)
    )
    return across > along


def _windows(e: Expr, work: Work, folded: set[Var]) -> bool:
    """Whether an element is folded into several results."""
    steps = [(v, e.coeff(v)) for v in e.vars()]
    strides = [s for v, s in steps if v in folded and s is not None and s is not ZERO]
    return any(s in strides or s is ONE for v, s in steps if v in work.outer)


def _apart(work: Work) -> list[Work]:
    """Statements without folds by the loops that they have, unless one writes what another reads."""
    domains = list(dict.fromkeys(s.inner for s in work.statements))
    late = {s.store.buffer for s in work.statements if s.late}
    if (len(domains) > 1 and late) or any(varies(work, work.sizes[v]) for d in domains for v in d):
        return [work]
    parts = []
    for d in domains:
        mine = tuple([replace(s, inner=frozenset()) for s in work.statements if s.inner == d])
        loops = (*work.outer, *sorted(d, key=lambda v: v.name))
        parts.append(Work(mine, loops, work.sizes))
    return parts


# ---------------------------------------------------------------- order of loops


def _contiguous(v: Var, accesses: Sequence[Access]) -> int:
    """Bytes of an iteration that are neighbours along a loop."""
    return sum(a.nbytes for a in accesses if a.direct and a.index.coeff(v) is ONE)


def _in_order(loops: Iterable[Var], accesses: Sequence[Access], sizes: dict[Var, Expr]) -> list[Var]:
    """Loops, outermost first; the last is the one along which most bytes are neighbours."""
    order = sorted(loops, key=lambda v: (*outward(v, accesses), v.name), reverse=True)
    if order:
        last = max(order, key=lambda v: (_contiguous(v, accesses), order.index(v)))
        mine, best = (_contiguous(v, accesses) for v in (order[-1], last))
        if best > mine and hint(sizes[last]) > 1:
            order.remove(last)
            order.append(last)
    return order


def _flat(name: str, loops: Sequence[Var], sizes: dict[Var, Expr]) -> tuple[Var, Expr, dict[Var, Expr]]:
    """One variable for all `loops`, its size, and each of them in terms of it."""
    size = product(sizes[v] for v in loops)
    flat = var(name, 0, max(size.hi - 1, 0) if size.hi < INF else INF, size)
    return flat, size, dims_of(tuple([(v, sizes[v]) for v in loops]), flat)


# ---------------------------------------------------------------- parts


def _plan_part(work: Work, card: CardFacts) -> tuple[Part, int]:
    if any(s.inner or _folded(work, s) for s in work.statements):
        return _Rows(work, card).plan()
    return _plan_pointwise(work, card)


def _plan_pointwise(work: Work, card: CardFacts) -> tuple[Part, int]:
    """Independent iterations: one dimension, or two where tensors are neighbours along different loops."""
    stores = [s.store for s in work.statements]
    accesses = accesses_of(stores)
    traffic = traffic_of(accesses)
    order = _in_order(work.outer, accesses, work.sizes)
    turned = _turned(order, accesses, work.sizes)
    subs: dict[Var, Expr] = {}
    dims: list[Dim] = []
    if turned is None:
        x, size, subs = _flat("x", order, work.sizes)
        block, warps = tiling.pointwise_block(hint(size), traffic, card)
        dims = [Dim(x, size, block, GRID)]
    else:
        k = order.index(turned)
        chains = {"z": order[:k], "y": [turned], "x": order[k + 1 :]}
        shapes = [_flat(n, loops, work.sizes) for n, loops in chains.items()]
        for _, _, part in shapes:
            subs.update(part)
        high, wide, warps = tiling.transposed_block(hint(shapes[1][1]), hint(shapes[2][1]), traffic)
        blocks = (1, high, wide)
        dims = [Dim(v, n, b, GRID) for (v, n, _), b in zip(shapes, blocks, strict=True) if n is not ONE]
    terms = _Canonical(subs)
    return Part(tuple(dims), (), (Phase(-1, tuple([terms.store(s) for s in stores])),)), warps


def _turned(order: list[Var], accesses: Sequence[Access], sizes: dict[Var, Expr]) -> Var | None:
    """The loop along which tensors are neighbours that are not so along the last one."""
    if len(order) < 2 or hint(sizes[order[-1]]) < 4:
        return None
    across = [a for a in accesses if a.direct and a.index.coeff(order[-1]) is not ONE and order[-1] in a.index.vars()]
    best = max(order[:-1], key=lambda v: _contiguous(v, across))
    return best if _contiguous(best, across) and hint(sizes[best]) >= 4 else None


class _Canonical(Terms):
    """Terms in which the loops of serial folds are k0, k1... and variables bound to data d0, d1..."""

    def __init__(self, subs: dict[Var, Expr], known: dict[Value, Value] | None = None) -> None:
        super().__init__(dict(subs), known)
        self._loops = self._bound = 0

    def _rebuild(self, value: Value) -> Value:
        if isinstance(value, Load):
            self.bind(value.binds)
        return super()._rebuild(value)

    def __call__(self, value: Value) -> Value:
        for v in walk([value]):
            if isinstance(v, Reduce) and v not in self._known:
                self._rename(v.axes)
        return super().__call__(value)

    def store(self, s: Store, buffer: str = "") -> Store:
        """A store in the new terms."""
        self.bind(s.binds)
        return super().store(s, buffer)

    def bind(self, binds: tuple[tuple[Var, Value], ...]) -> None:
        """Name the variables that are bound to data."""
        for x, _ in binds:
            if x not in self._subs:
                self._subs[x] = var(f"d{self._bound}", x.lo, x.hi)  # type: ignore[index]
                self._bound += 1

    def _rename(self, axes: tuple[Axis, ...]) -> None:
        for a in axes:
            if a.var not in self._subs:
                self._subs[a.var] = var(f"k{self._loops}", a.var.lo, a.var.hi, a.size)  # type: ignore[index]
                self._loops += 1


def fold_shape(work: Work, domain: Domain, card: CardFacts) -> tuple[int, int, int, bool, int]:
    """Rows, elements of each, rows of a tile, whether a row's elements are neighbours, and bytes that one has."""
    plan = _Rows(work, card)
    near = plan.near(domain)
    length, rows, along = extent(work, domain), extent(work, work.outer), plan.along(domain, near)
    high = 1 if along else tiling.across(traffic_of(near), rows, length, card)
    return rows, length, high, along, sum(a.nbytes for a in near)


# ---------------------------------------------------------------- rows


class _Rows:
    """A part with inner dimensions: what all statements share is the grid, each set of other loops a dimension."""

    def __init__(self, work: Work, card: CardFacts) -> None:
        self.work = work
        self.card = card
        self.serial = serial_folds(work)
        self.stores = [s.store for s in work.statements]
        self.accesses = accesses_of(self.stores)
        self.folds = self._reductions()
        self.domains = self._domains()

    def plan(self) -> tuple[Part, int]:
        """The part, and how many warps a program has."""
        work = self.work
        # What is done for each element of a row counts more than what is done once.
        inside = [a for d in self.domains for a in self.near(d)]
        rowwise = any(_contiguous(v, inside) for v in work.outer)
        order = _in_order(work.outer, inside if rowwise else self.accesses, work.sizes)
        # Sizes of inner dimensions must be the same in all of a block.
        fixed = [v for v in order if any(v in work.sizes[r].vars() for d in self.domains for r in d)]
        z, places, subs = _flat("z", fixed, work.sizes)
        x, count, part = _flat("x", [v for v in order if v not in fixed], work.sizes)
        subs.update(part)
        rows = extent(work, order)
        shapes = []
        moved = []
        for d in self.domains:
            mine = self.near(d)
            moved.append(traffic_of(mine))
            shapes.append((_in_order(d, mine, work.sizes), self.along(d, mine)))
        tiles = [self._tile(rows, loops, along, t) for (loops, along), t in zip(shapes, moved, strict=True)]
        high = min((t[0] for t in tiles), default=1)
        warps = max((t[3] for t in tiles), default=1)
        inner: list[Dim] = []
        terms: dict[Domain, dict[Var, Expr]] = {}
        for k, (d, (loops, _), (_, block, whole, _)) in enumerate(zip(self.domains, shapes, tiles, strict=True)):
            # A slice of a row may end where its place in the grid says.
            sizes = {v: work.sizes[v].subs(subs) for v in loops}
            r, size, part = _flat(f"r{k}", loops, sizes)
            inner.append(Dim(r, size, block, WHOLE if whole else LOOP))
            terms[d] = {**subs, **part}
        terms[frozenset()] = subs
        phases = self._phases(terms, inner)
        grid = [Dim(v, n, b, GRID) for v, n, b in ((z, places, 1), (x, count, high)) if n is not ONE]
        return Part(tuple(grid), tuple(inner), phases), warps

    # ------------------------------------------------------------ dimensions

    def _reductions(self) -> list[Reduce]:
        """Reductions over inner dimensions, those that others are made of first."""
        return [v for v in values_of(*roots_of(*self.stores)) if isinstance(v, Reduce) and v not in self.serial]

    def _domains(self) -> list[Domain]:
        folded = [frozenset(a.var for a in r.axes) for r in self.folds]
        return [d for d in dict.fromkeys([*folded, *(s.inner for s in self.work.statements)]) if d]

    def near(self, d: Domain) -> list[Access]:
        """Accesses that go along a domain."""
        stores = [s.store for s in self.work.statements if s.inner == d]
        bodies = [Store("", ZERO, r.body) for r in self.folds if {a.var for a in r.axes} == d]
        inside = accesses_of([*stores, *bodies])
        return [a for a in inside if not d.isdisjoint(a.index.vars())]

    def along(self, d: Domain, accesses: Sequence[Access]) -> bool:
        """Whether neighbours in memory are elements of a row."""
        mine = max((_contiguous(v, accesses) for v in d), default=0)
        theirs = max((_contiguous(v, accesses) for v in self.work.outer), default=0)
        return mine >= theirs

    def _tile(self, rows: int, loops: list[Var], along: bool, traffic: tiling.Traffic) -> tuple[int, int, bool, int]:
        size = product(self.work.sizes[v] for v in loops)
        tile = tiling.row_tile(rows, extent(self.work, loops), self._live(frozenset(loops)), along, traffic, self.card)
        if tile[2] and size.terms and tiling.power_above(size.hi) > tile[1]:  # nobody knows whether the row fits
            return tile[0], tile[1], False, tile[3]
        return tile

    def _live(self, d: Domain) -> int:
        """Registers for each element of a row that stay from the first phase that folds it to the last."""
        bodies = [r.body for r in self.folds if {a.var for a in r.axes} == d]
        loads = {v for v in walk(bodies) if isinstance(v, Load) and not d.isdisjoint(v.index.vars())}
        scans = any(isinstance(v, Scan) for s in self.stores for v in walk(roots_of(s)))
        return sum(max(1, DTYPES[v.dtype].nbytes // 4) for v in loads) + scans

    # ------------------------------------------------------------ phases

    def _phases(self, subs: dict[Domain, dict[Var, Expr]], inner: list[Dim]) -> tuple[Phase, ...]:
        values: dict[Value, Value] = {}
        terms = {d: _Canonical(s, values) for d, s in subs.items()}
        place = {d: k for k, d in enumerate(self.domains)}
        place[frozenset()] = -1
        online = self._online(inner, place)
        levels = self._levels({whole: best for best, whole in online.values()})
        rows: dict[tuple[int, int], list[Fold | Online | Store]] = {}
        skipped = {r for pair in online.values() for r in pair}
        for k, r in enumerate(self.folds):
            values[r] = local(r.dtype, f"f{k}")
        for r in self.folds:
            d = frozenset(a.var for a in r.axes)
            pair = online.get(r)
            key = (levels[r] - 1, place[d])
            if pair is not None:
                best, whole = pair
                names = values[best].buffer, values[whole].buffer  # type: ignore[union-attr]
                finite = whole.body.args[0].args[1] is not best  # type: ignore[union-attr]
                rows.setdefault(key, []).append(Online(*names, terms[d](best.body), finite))
            elif r not in skipped:
                name: str = values[r].buffer  # type: ignore[union-attr]
                position = terms[d].index(position_of(r)) if r.name.startswith("arg") else ZERO
                rows.setdefault(key, []).append(Fold(name, r.name, terms[d](r.body), position))
        # What others read must still be there; of two late stores the one along more loops may read the other's.
        for s in sorted(self.work.statements, key=lambda s: (s.late, -len(s.inner))):
            level = max((levels.get(v, 0) for v in roots_of(s.store)), default=0)
            if s.late:
                level = max((level, *(n for n, _ in rows)))
                level += any(key[0] == level and key[1] != place[s.inner] for key in rows)
            rows.setdefault((level, place[s.inner]), []).append(terms[s.inner].store(s.store))
        return tuple([Phase(dim, tuple(rows[level, dim])) for level, dim in sorted(rows)])

    def _levels(self, beside: dict[Reduce, Reduce]) -> dict[Value, int]:
        """How many folds, one after another, a value waits for; `beside`: folds that are done with another one."""
        levels: dict[Value, int] = {}
        mine = set(self.folds)
        for v in values_of(*roots_of(*self.stores)):
            with_it = beside.get(v)  # type: ignore[arg-type]
            below = max((levels[c] for c in children_of(v)), default=0)
            levels[v] = levels[with_it] if with_it is not None else below + (v in mine)
        return levels

    def _online(self, inner: list[Dim], place: dict[Domain, int]) -> dict[Reduce, tuple[Reduce, Reduce]]:
        """A maximum -> it and the sum of exponentials below it, where rows are walked and both can be had at once."""
        pairs: dict[Reduce, tuple[Reduce, Reduce]] = {}
        for r in self.folds:
            match r.body:
                case Op(name="exp", args=(Op(name="sub", args=(value, shift)),)) if r.name == "sum":
                    best = _best(shift)
                    d = frozenset(a.var for a in r.axes)
                    fits = best in self.folds and best not in pairs and inner[place[d]].kind == LOOP
                    if best is not None and fits and best.body is value and {a.var for a in best.axes} == d:
                        pairs[best] = (best, r)
        return pairs


def _best(shift: Value) -> Reduce | None:
    """The maximum that is subtracted: itself, or 0 where it is infinite."""
    if isinstance(shift, Op) and shift.name == "where":
        cond, zero, top = shift.args
        infinite = isinstance(cond, Op) and cond.name == "isinf" and cond.args[0] is top
        if not infinite or getattr(zero, "value", 1) != 0:
            return None
        shift = top
    return shift if isinstance(shift, Reduce) and shift.name == "max" else None


_WIDE = 1 << 31


def _is_wide(parts: Sequence[tuple[Part, int]]) -> bool:
    """Whether an index, or a number of an iteration, may not fit 32 bits."""
    for part, _ in parts:
        items = [i for p in part.phases for i in p.items]
        values = walk(roots_of(*items))
        indices = [i.index for i in items if isinstance(i, Store)]
        indices += [v.index if isinstance(v, Load) else v.expr for v in values if isinstance(v, Load | Index)]
        ends = [(d.size + d.block).hi for d in (*part.grid, *part.inner)]
        if any(n >= _WIDE for n in ends) or any(e.hi >= _WIDE or e.lo < -_WIDE for e in indices):
            return True
    return False
