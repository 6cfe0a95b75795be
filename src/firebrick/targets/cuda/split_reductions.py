"""Reductions of few long rows, split over programs: each program folds a slice, what follows folds the results.

    t = sum(a[i] for i in 1000000)      ->   for s in 245: p[s] = sum(a[4096*s + c] for c in chunk)
    b[i] = a[i] / t                          for s in 245: b[4096*s + c] = a[4096*s + c] / sum(p[u] for u in 245)

A later level of reductions, and what is stored of the rows, starts from the slices' results: folding those again in
each program costs less than a launch that would do it once.
"""

from __future__ import annotations

from firebrick.ir.index.expr import ZERO, Expr, Var, const, minimum, product, total, var
from firebrick.ir.kernels.groups import Scratchpad, Statement, Work
from firebrick.ir.loops.constructors import index_value
from firebrick.ir.loops.program import Axis, Load, Op, Reduce, Scan, Store, Value, contiguous_strides
from firebrick.ir.loops.values import children_of, roots_of, values_of, walk
from firebrick.targets.cuda import tiling
from firebrick.targets.cuda.facts import CardFacts
from firebrick.targets.cuda.planner import Terms, fold_shape, serial_folds
from firebrick.targets.cuda.tile import dims_of

_FEW, _LONG = 4, 1 << 30
"""Rows up to which one of unknown length is split, since it may be as long as this: one program would take a second."""


def split_folds(work: Work, card: CardFacts) -> tuple[list[list[Work]], tuple[Scratchpad, ...]]:
    """The launches of a group, each as work that is done side by side: one, or one for each level of folds and one
    for what is left."""
    shape = _splittable(work)
    if shape is None:
        return [[work]], ()
    order, domain = shape
    rows, length, high, along, nbytes = fold_shape(work, domain, card)
    step, whole = 1024 if along else 64, product(a.size for a in order)
    if whole.terms:
        length = min(whole.hi, _LONG) if rows <= _FEW else 1
    n = tiling.slices(-(-rows // high), length, step, card)
    chunk = (whole + (n * step - 1)) // (n * step) * step
    works, pads = _Split(work, order, whole, chunk, n).launches() if n > 1 else ([[work]], ())
    return (works, pads) if tiling.pays(nbytes * high * length, along, len(works) - 1, card) else ([[work]], ())


def _splittable(work: Work) -> tuple[tuple[Axis, ...], frozenset[Var]] | None:
    """The axes that all reductions fold, in the order that positions count, if slices of them can be done apart."""
    serial = serial_folds(work)
    values = [v for s in work.statements for v in walk(roots_of(s.store))]
    folds = [v for v in values if isinstance(v, Reduce)]
    if not folds or serial or any(isinstance(v, Scan) for v in values):
        return None
    if any(s.late or s.store.mode != "set" or s.store.binds for s in work.statements):
        return None
    domains = {frozenset(a.var for a in r.axes) for r in folds}
    orders = {r.axes for r in folds if r.name.startswith("arg")}
    if len(domains) > 1 or len(orders) > 1:
        return None
    (domain,) = domains
    if any(s.inner not in (frozenset(), domain) for s in work.statements):
        return None
    return next(iter(orders), folds[0].axes), domain


class _Split:
    def __init__(self, work: Work, axes: tuple[Axis, ...], length: Expr, chunk: Expr, most: int) -> None:
        self.work = work
        self.count = most if length.terms else -(-length.const // chunk.const)
        self.slice = var("slice", 0, self.count - 1)
        self.at = var("at", bound=chunk)
        self.part = var("part", 0, self.count - 1)
        left = length - chunk * self.slice  # where the length is known late, slices may be empty
        self.size = chunk if length - chunk * self.count is ZERO else minimum(chunk, left)
        self.chunk = chunk
        where = var("whole", bound=self.count * chunk)
        flat = {where: chunk * self.slice + self.at}
        self.subs = {v: e.subs(flat) for v, e in dims_of(tuple([(a.var, a.size) for a in axes]), where).items()}
        self.levels: dict[Value, int] = {}
        self.pads: list[Scratchpad] = []
        self.parts: dict[Reduce, tuple[str, str]] = {}
        steps = contiguous_strides([work.sizes[v] for v in work.outer])
        self.row = total(v * step for v, step in zip(work.outer, steps, strict=True))
        self.rows = product(work.sizes[v] for v in work.outer)

    def launches(self) -> tuple[list[list[Work]], tuple[Scratchpad, ...]]:
        """Work of each launch, side by side, and the temporaries between them."""
        values = values_of(*roots_of(*(s.store for s in self.work.statements)))
        for v in values:
            self.levels[v] = max((self.levels[c] for c in children_of(v)), default=0) + isinstance(v, Reduce)
        folds = [v for v in values if isinstance(v, Reduce)]
        top = max(self.levels[r] for r in folds)
        out: list[list[Work]] = []
        for level in range(1, top + 1):
            now = [r for r in folds if self.levels[r] == level]
            terms = self._terms()
            stores = [s for r in now for s in self._partial(r, terms)]
            # What needs no more than the levels before is stored while its row is read.
            stores += [
                self._element(s.store, terms) for s in self.work.statements if s.inner and self._level(s) == level - 1
            ]
            out.append([self._sliced(stores)])
        rows = [s.store for s in self.work.statements if s.inner and self._level(s) == top]
        ends = [s.store for s in self.work.statements if not s.inner]
        last: list[Work] = []
        if rows:
            last.append(self._sliced([self._element(s, self._terms()) for s in rows]))
        if ends:
            terms = self._terms(whole=True)
            sizes = {**self.work.sizes, self.part: const(self.count)}
            last.append(Work(tuple([Statement(frozenset(), terms.store(s)) for s in ends]), self.work.outer, sizes))
        return [*out, last] if last else out, tuple(self.pads)

    def _level(self, s: Statement) -> int:
        return max(self.levels[r] for r in roots_of(s.store))

    def _element(self, s: Store, terms: Terms) -> Statement:
        return Statement(frozenset((self.at,)), terms.store(s))

    def _sliced(self, statements: list[Statement]) -> Work:
        sizes = {**self.work.sizes, self.part: const(self.count), self.slice: const(self.count), self.at: self.size}
        return Work(tuple(statements), (*self.work.outer, self.slice), sizes)

    def _terms(self, whole: bool = False) -> Terms:
        """Terms of one slice, in which finished reductions are folds of the slices' results."""
        results: dict[Value, Value] = {r: self._result(r) for r in self.parts}
        return Terms({} if whole else self.subs, results)

    def _result(self, r: Reduce) -> Value:
        """A reduction from the results of slices."""
        name, place = self.parts[r]
        axes = (Axis(self.part, const(self.count)),)
        values = Load(r.body.dtype if place else r.dtype, name, self.count * self.row + self.part)
        if not place:
            return Reduce(r.dtype, r.name, axes, values)
        best = Reduce("i64", r.name, axes, values)
        slot = var("best", 0, self.count - 1)
        inside = Load("i64", place, self.count * self.row + slot, ((slot, best),))
        return Op("i64", "add", (Op("i64", "mul", (best, index_value(self.chunk))), inside))

    def _partial(self, r: Reduce, terms: Terms) -> list[Statement]:
        """What a slice folds of a reduction, in memory."""
        body, axes, index = terms(r.body), (Axis(self.at, self.size),), self.count * self.row + self.slice
        places = r.name.startswith("arg")
        dtype = r.body.dtype if places else r.dtype
        name, place = self.parts[r] = self._pad(dtype), self._pad("i64") if places else ""
        values = {name: Reduce(dtype, r.name.removeprefix("arg"), axes, body)}
        values |= {place: Reduce("i64", r.name, axes, body)} if places else {}
        return [Statement(frozenset(), Store(n, index, v)) for n, v in values.items()]

    def _pad(self, dtype: str) -> str:
        name = f"part{len(self.pads)}"
        self.pads.append(Scratchpad(name, dtype, self.rows * self.count))
        return name
