"""Builds the loop tree of a group of fused statements: phases, hoisting, row-local scratch.

Under the outer loops that all statements share, each inner loop does as much as the reductions before it allow:

    out[i, j] = exp(x[i, j] - max(x[i, :])) / sum(exp(...))

    for i                                     phase 0, over j: r0 = max x
      for j  r0 = max x                       phase 1, over j: t0 = exp(x - r0); r1 = sum t0
      for j  t0[j] = exp(x - r0); r1 += t0    phase 2, over j: out = t0 / r1
      for j  out = t0[j] / r1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from firebrick.ir.index.expr import ZERO, Expr, Var, product, total
from firebrick.ir.kernels.groups import Statement
from firebrick.ir.kernels.tree import Acc, Fold, Let, Loop, Scratch, Stmt, all_statements, computed, local
from firebrick.ir.loops.program import (
    Axis,
    Const,
    Index,
    Load,
    Masked,
    Op,
    Reduce,
    Scan,
    Store,
    Value,
    contiguous_strides,
)
from firebrick.ir.loops.scalar_ops import SCALAR_OPS
from firebrick.ir.loops.values import Rewriter, Table, children_of, ordered, roots_of, walk

_SCRATCH_COST = 12
"""A value that costs at least this much is kept in scratch for later phases instead of computed again."""
_SCRATCH_LIMIT = 16384
"""Most elements of one scratch row."""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """Loops in order with their kinds. outer: shared by all statements; inner: order of each set of inner axes."""

    sizes: dict[Var, Expr]
    outer: tuple[tuple[Var, str], ...]
    inner: dict[frozenset[Var], tuple[tuple[Var, str], ...]]
    parallel: frozenset[Var] = frozenset()
    lanes_inside: int = 1  # iterations that run at once in a loop around scratch


@dataclass(slots=True)
class _Entry:
    """Work of one phase: a store, or a fold of `reduce` into the accumulator `acc`."""

    store: Store | None
    reduce: Reduce | None
    acc: str
    domain: frozenset[Var]
    level: int = 0
    late: bool = False

    @property
    def value(self) -> Value:
        if self.reduce is not None:
            return self.reduce.body
        assert self.store is not None
        return self.store.value

    def roots(self) -> list[Value]:
        return [self.value] if self.store is None else roots_of(self.store)


@dataclass(slots=True)
class _Phase:
    level: int
    domain: frozenset[Var]
    entries: list[_Entry] = field(default_factory=list)
    reload: list[tuple[Value, Load]] = field(default_factory=list)


def build_tree(statements: Sequence[Statement], plan: LoopPlan, facts: Table) -> tuple[Stmt, ...]:
    """The loop tree that does all statements, in the order that their values allow."""
    entries = [_Entry(s.store, None, "", s.inner, late=s.late) for s in statements]
    # Symbolic sizes are known everywhere.
    symbols: set[Var] = set()
    for e in plan.sizes.values():
        symbols |= e.vars()
    for s in statements:
        for v in walk(roots_of(s.store)):
            e = v.index if isinstance(v, Load) else v.expr if isinstance(v, Index) else ZERO
            symbols |= e.vars() - (frozenset(x for x, _ in v.binds) if isinstance(v, Load) else frozenset())
    symbols -= plan.sizes.keys()
    return tuple(_Builder(plan, facts).block(frozenset(symbols), plan.outer, entries))


class _Builder:
    def __init__(self, plan: LoopPlan, facts: Table) -> None:
        self._plan = plan
        self._facts = facts
        self._env: dict[Value, Value] = {}
        self._undo: list[Value] = []
        self._counts = {"h": 0, "r": 0, "t": 0}
        self._prices: dict[Value, int] = {}
        self._open: dict[Scan, str] = {}

    # ------------------------------------------------------------ names and scopes

    def _fresh(self, letter: str) -> str:
        n = self._counts[letter]
        self._counts[letter] = n + 1
        return f"{letter}{n}"

    def _bind(self, value: Value, by: Value) -> None:
        if value not in self._env:
            self._env[value] = by
            self._undo.append(value)

    def _expr(self, value: Value) -> Value:
        """The value in terms of the names that are bound."""
        return Rewriter(lambda e: e, known=self._env)(value)

    # ------------------------------------------------------------ blocks

    def block(self, ctx: frozenset[Var], loops: tuple[tuple[Var, str], ...], entries: list[_Entry]) -> list[Stmt]:
        """Statements for `entries` inside the loops of `ctx`, with `loops` still to be opened around all of them."""
        if not loops:
            return self._phases(ctx, entries)
        out: list[Stmt] = []
        ready = self._reductions(ctx, entries)
        if ready:
            out += self._phases(ctx, [], ready)
        var, kind = loops[0]
        out += self._hoist(ctx, entries)
        for scan in self._scans(entries):  # accumulators of what runs along the loop
            if scan.var is var:
                self._open[scan] = self._fresh("r")
                out.append(Acc(self._open[scan], scan.name, scan.dtype, running=True))
        mark = len(self._undo)
        body = self.block(ctx | {var}, loops[1:], entries)
        while len(self._undo) > mark:
            del self._env[self._undo.pop()]
        out.append(Loop(Axis(var, self._plan.sizes[var]), kind, var in self._plan.parallel, tuple(body)))
        return out

    def _reductions(self, ctx: frozenset[Var], entries: list[_Entry]) -> list[Reduce]:
        """Reductions in `entries` that depend on nothing but `ctx` and have not been done, those inside first."""
        unfolded = self._unfolded([root for entry in entries for root in entry.roots()])
        return [v for v in unfolded if isinstance(v, Reduce) and self._facts(v).free <= ctx]

    def _unfolded(self, roots: Iterable[Value]) -> list[Value]:
        """Values with a reduction or a scan in them that have no name yet, those inside of others first."""
        return ordered(roots, lambda v: v in self._env or not self._facts(v).reduces)

    def _phases(self, ctx: frozenset[Var], entries: list[_Entry], ready: list[Reduce] | None = None) -> list[Stmt]:
        reductions = self._reductions(ctx, entries) if ready is None else ready
        phases = self._assign(ctx, entries, reductions)
        out: list[Stmt] = [*self._share(phases)]
        here = [e for e in entries if e.domain <= ctx]
        for phase in phases:
            for value, load in phase.reload:
                self._bind(value, load)
            folds = [(e.acc, e.reduce) for e in phase.entries if e.reduce is not None]
            out += [Acc(acc, reduce.name, reduce.body.dtype) for acc, reduce in folds]
            out += self.block(ctx, self._plan.inner[phase.domain - ctx], phase.entries)
            for acc, reduce in folds:
                self._bind(reduce, local(reduce.dtype, acc))
        for scan in self._scans(here):  # this iteration goes into the accumulators; what they are now has a name
            name, acc = self._fresh("h"), self._open[scan]
            out += [Fold(acc, self._expr(scan.body), ZERO), Let(name, local(scan.dtype, acc))]
            self._bind(scan, local(scan.dtype, name))
        out += [self._leaf(e) for e in here]
        return out

    def _scans(self, entries: list[_Entry]) -> list[Scan]:
        """Scans in `entries` whose value here is not known yet, those inside of others first."""
        roots = [root for entry in entries for root in entry.roots()]
        values = ordered(roots, lambda v: v in self._env or not self._facts(v).reduces or isinstance(v, Reduce))
        return [v for v in values if isinstance(v, Scan)]

    def _leaf(self, entry: _Entry) -> Stmt:
        if entry.reduce is not None:
            counted = entry.reduce.axes if entry.reduce.name.startswith("arg") else ()
            position = _place([(axis.var, axis.size) for axis in counted])
            return Fold(entry.acc, self._expr(entry.reduce.body), position)
        assert entry.store is not None
        return Rewriter(lambda e: e, known=self._env).store(entry.store)

    def _hoist(self, ctx: frozenset[Var], entries: list[_Entry]) -> list[Stmt]:
        """Lets for what a loop to be opened needs and that does not change in it."""
        out: list[Stmt] = []
        seen: set[Value] = set()
        roots = [root for entry in entries for root in entry.roots()]
        pending: set[Value] = set()  # what a reduction that is still to be done is in
        for v in self._unfolded(roots):
            if isinstance(v, (Reduce, Scan)) or not pending.isdisjoint(children_of(v)):
                pending.add(v)
        stack = roots[::-1]
        while stack:
            v = stack.pop()
            if v in seen or v in self._env or isinstance(v, (Const, Index)):
                continue
            seen.add(v)
            if self._facts(v).free <= ctx and v not in pending:
                name = self._fresh("h")
                out.append(Let(name, self._expr(v)))
                self._bind(v, local(v.dtype, name))
            elif isinstance(v, Masked):
                stack.append(v.cond)
            else:
                stack.extend(reversed(children_of(v)))
        return out

    # ------------------------------------------------------------ phases

    def _assign(self, ctx: frozenset[Var], entries: list[_Entry], reductions: list[Reduce]) -> list[_Phase]:
        """Levels: a phase comes after the reductions that it reads."""
        here = set(reductions)
        levels: dict[Value, int] = {}

        def level(v: Value) -> int:
            for below in ordered([v], lambda c: c in levels or c in self._env or not self._facts(c).reduces):
                levels[below] = max((levels.get(c, 0) for c in children_of(below)), default=0) + (below in here)
            return levels.get(v, 0)

        work = [_Entry(None, r, self._fresh("r"), frozenset(a.var for a in r.axes), level(r) - 1) for r in reductions]
        top = max((e.level for e in work), default=-1)
        for e in entries:
            if not e.domain <= ctx:
                e.level = max((level(r) for r in e.roots()), default=0)
                top = max(top, e.level)
                work.append(e)
        phases: dict[tuple[int, frozenset[Var]], _Phase] = {}
        last = {e.domain for e in work if e.level == top and not e.late}
        # What other loops read must still be there; of two late stores the one with more axes may read the other's.
        late = sorted(dict.fromkeys(e.domain for e in work if e.late), key=len, reverse=True)
        first = top + (not last <= set(late[:1]))
        for e in work:
            if e.late:
                e.level = first + late.index(e.domain)
        for e in sorted(work, key=lambda e: (e.level, e.late)):
            key = (e.level, e.domain)
            phases.setdefault(key, _Phase(*key)).entries.append(e)
        return sorted(phases.values(), key=lambda p: p.level)

    def _price(self, value: Value) -> int:
        """Cost of computing a value again once the reductions in it are done."""
        for v in ordered([value], self._prices.__contains__):
            price = 0
            if not isinstance(v, (Const, Index, Reduce)):
                own = SCALAR_OPS[v.name].cost if isinstance(v, Op) else 2
                price = own + sum(self._prices[c] for c in children_of(v))
            self._prices[v] = price
        return self._prices[value]

    def _share(self, phases: list[_Phase]) -> list[Scratch]:
        """Keep costly values of one phase for later phases over the same axes: in scratch, or where they are stored."""
        out: list[Scratch] = []
        shared: dict[frozenset[Var], dict[Value, _Phase]] = {}
        for phase in phases:
            earlier = shared.setdefault(phase.domain, {})
            seen: set[Value] = set()
            stack = [root for e in phase.entries for root in e.roots()]
            while stack:
                v = stack.pop()
                if v in seen or v in self._env:
                    continue
                seen.add(v)
                maker = earlier.get(v)
                if maker is not None and self._price(v) >= _SCRATCH_COST and self._facts(v).free & phase.domain:
                    load = self._keep(v, maker, out)
                    if load is not None:
                        phase.reload.append((v, load))
                        continue
                if isinstance(v, Masked):
                    stack.append(v.cond)
                elif not isinstance(v, Reduce):
                    stack.extend(children_of(v))
            for v in seen:
                earlier.setdefault(v, phase)
        return out

    def _keep(self, value: Value, maker: _Phase, out: list[Scratch]) -> Load | None:
        # What doesn't change along a loop may be read outside of it, where the loop's variable is not known.
        changing = self._facts(value).free & maker.domain
        for e in maker.entries:
            stored = e.store
            if stored is None or stored.value is not value or stored.binds or stored.mode != "set":
                continue
            if stored.index.vars() & maker.domain <= changing:
                return Load(value.dtype, stored.buffer, stored.index)
        axes = [(var, self._plan.sizes[var]) for var, _ in self._plan.inner[maker.domain] if var in changing]
        index, size = _place(axes), product(n for _, n in axes)
        if size.terms or size.const * self._plan.lanes_inside > _SCRATCH_LIMIT:
            return None
        name = self._fresh("t")
        out.append(Scratch(name, value.dtype, size.const))
        maker.entries.append(_Entry(Store(name, index, value), None, "", maker.domain))
        return Load(value.dtype, name, index)


def _place(axes: Sequence[tuple[Var, Expr]]) -> Expr:
    """Where an element lies whose axes are dense, in their order."""
    strides = contiguous_strides([size for _, size in axes])
    return total(stride * var for stride, (var, _) in zip(strides, axes, strict=True))


def rename(body: tuple[Stmt, ...], names: dict[str, str], index: dict[Var, Expr]) -> tuple[Stmt, ...]:
    """The tree with other names for buffers and loop variables."""

    def load(value: Load) -> Value:
        name = names.get(value.buffer)
        return value if name is None else Load(value.dtype, name, value.index, value.binds)

    rewrite = Rewriter(lambda e: e.subs(index), load)

    def stmt(s: Stmt) -> Stmt:
        if isinstance(s, Let):
            return Let(s.name, rewrite(s.value))
        if isinstance(s, Fold):
            return Fold(s.acc, rewrite(s.value), s.position.subs(index))
        if isinstance(s, Loop):
            var = index.get(s.axis.var, s.axis.var)
            return Loop(Axis(var, s.axis.size.subs(index)), s.kind, s.parallel, tuple([stmt(x) for x in s.body]))  # type: ignore[arg-type]
        if isinstance(s, Store):
            return rewrite.store(s, names.get(s.buffer, ""))
        return s

    return tuple([stmt(s) for s in body])


def buffers_in_order(body: tuple[Stmt, ...]) -> tuple[dict[str, str], set[str]]:
    """Buffers in order of appearance with their dtypes, names made inside left out; and those that are written."""
    inside: set[str] = set()
    order: dict[str, str] = {}
    written: set[str] = set()

    for s in all_statements(body):
        for v in walk(computed(s)):
            if isinstance(v, Load) and v.buffer not in inside:
                order.setdefault(v.buffer, v.dtype)
        if isinstance(s, (Let, Scratch, Acc)):
            inside.add(s.name)
        elif isinstance(s, Store) and s.buffer not in inside:
            order.setdefault(s.buffer, s.value.dtype)
            written.add(s.buffer)
    return order, written
