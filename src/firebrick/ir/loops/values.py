"""Walks over scalar values: free variables, cost, accesses, rewriting. Values are interned, so memos key on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from firebrick.ir.index.expr import Expr, Var
from firebrick.ir.loops.program import Axis, Const, Index, Load, Masked, Op, Reduce, Scan, Store, Value
from firebrick.ir.loops.scalar_ops import SCALAR_OPS

_NONE: frozenset[Var] = frozenset()
_GUESS = 193
"""What a symbolic size counts as where sizes are compared."""


def hint(e: Expr) -> int:
    """The value of a size or stride, symbols taken as a middling number."""
    return e.evaluate({v.name: _GUESS for v in e.vars()}) if e.terms else e.const


@dataclass(frozen=True, slots=True)
class Facts:
    """What scheduling asks about a value.

    free: index variables that it depends on. reduces: whether a reduction or a scan is in it. loads: loads, each
    occurrence counted, up to a limit. cost: rough price in additions, each occurrence counted.
    """

    free: frozenset[Var]
    reduces: bool
    loads: int
    cost: int


_LIMIT = 1 << 20


class Table:
    """Facts of values, each computed once."""

    def __init__(self) -> None:
        self._facts: dict[Value, Facts] = {}

    def __call__(self, value: Value) -> Facts:
        """The facts of a value."""
        result = self._facts.get(value)
        if result is None:
            for below in ordered([value], self._facts.__contains__):
                self._facts[below] = self._compute(below)
            result = self._facts[value]
        return result

    def _compute(self, value: Value) -> Facts:
        facts = [self(c) for c in children_of(value)]
        free = _NONE.union(*(f.free for f in facts))
        reduces = any(f.reduces for f in facts)
        loads, cost = sum(f.loads for f in facts), sum(f.cost for f in facts)
        match value:
            case Const():
                return Facts(_NONE, False, 0, 0)
            case Index():
                return Facts(value.expr.vars(), False, 0, 1)
            case Load():
                own = value.index.vars().difference(v for v, _ in value.binds)
                return Facts(own | free, reduces, 1 + loads, cost + 4 if value.binds else 1)
            case Reduce():
                return Facts(free.difference(a.var for a in value.axes), True, loads, cost * 8)
            case Scan():
                return Facts(free | {value.var}, True, loads, cost + 1)
        cost += SCALAR_OPS[value.name].cost if isinstance(value, Op) else 2
        return Facts(free, reduces, min(_LIMIT, loads), min(_LIMIT, cost))


def children_of(value: Value) -> tuple[Value, ...]:
    """The values that a value is made of."""
    if isinstance(value, Op):
        return value.args
    if isinstance(value, Load):
        return tuple(bound for _, bound in value.binds)
    if isinstance(value, Masked):
        return (value.cond, value.body, value.other)
    if isinstance(value, (Reduce, Scan)):
        return (value.body,)
    return ()


def walk(roots: Iterable[Value]) -> list[Value]:
    """All values that the roots are made of, each once, users before what they use is not promised."""
    seen: dict[Value, None] = {}
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen[value] = None
        stack.extend(children_of(value))
    return list(seen)


def ordered(roots: Iterable[Value], skip: Callable[[Value], bool]) -> list[Value]:
    """What the roots are made of, arguments before their users, without values that `skip` holds of and their parts.

    Visitors that go by this list need no recursion, so a chain of pointwise ops may be of any length.
    """
    out: dict[Value, None] = {}
    seen: set[Value] = set()
    stack: list[tuple[Value, bool]] = [(root, False) for root in roots]
    stack.reverse()
    while stack:
        value, ready = stack.pop()
        if ready:
            out[value] = None
        elif value not in seen and not skip(value):
            seen.add(value)
            stack.append((value, True))
            stack.extend([(child, False) for child in reversed(children_of(value))])
    return list(out)


def values_of(*roots: Value) -> list[Value]:
    """Every value under `roots`, arguments before their users."""
    return ordered(roots, lambda _: False)


def roots_of(*items: Any) -> list[Value]:
    """What stores (and folds of tiles) hold: the values, and the parts of their places that come from data."""
    return [v for i in items for v in (i.value, *[b for _, b in getattr(i, "binds", ())])]


def loads_of(*items: Any) -> list[Load]:
    """Every load that stores or folds do, each once."""
    return [v for v in walk(roots_of(*items)) if isinstance(v, Load)]


class Rewriter:
    """Rebuilds values with indices and axes in other terms and loads replaced.

    index: gives an index in the new terms. load: gets each load in the new terms and gives the value that takes its
    place. axes: the axes that take the place of a reduction's axes. known: values that others take the place of.
    """

    def __init__(
        self,
        index: Callable[[Expr], Expr],
        load: Callable[[Load], Value] | None = None,
        axes: Callable[[tuple[Axis, ...]], tuple[Axis, ...]] | None = None,
        known: Mapping[Value, Value] | None = None,
    ) -> None:
        self.index, self._load, self._axes = index, load, axes
        self._known: Mapping[Value, Value] = {} if known is None else known
        self._memo: dict[Value, Value] = {}

    def __call__(self, value: Value) -> Value:
        """The rewritten value."""
        result = self._known.get(value) or self._memo.get(value)
        if result is None:
            for below in ordered([value], lambda v: v in self._memo or v in self._known):
                self._memo[below] = self._rebuild(below)
            result = self._memo[value]
        return result

    def store(self, s: Store, buffer: str = "") -> Store:
        """The rewritten store, to another buffer if one is named."""
        value = self(s.value)
        binds = tuple([(self.index(v), self(b)) for v, b in s.binds])
        return Store(buffer or s.buffer, self.index(s.index), value, s.mode, binds)  # type: ignore[arg-type]

    def _now(self, value: Value) -> Value:
        """What a value has become."""
        return self._known.get(value) or self._memo[value]

    def _rebuild(self, value: Value) -> Value:
        if isinstance(value, Const):
            return value
        if isinstance(value, Op):
            args = tuple([self._now(a) for a in value.args])
            return value if args == value.args else Op(value.dtype, value.name, args)
        if isinstance(value, Load):
            binds = tuple([(self.index(v), self._now(b)) for v, b in value.binds])
            load = Load(value.dtype, value.buffer, self.index(value.index), binds)  # type: ignore[arg-type]
            return self._load(load) if self._load else load
        if isinstance(value, Index):
            return Index(value.dtype, self.index(value.expr))
        if isinstance(value, Masked):
            return Masked(value.dtype, self._now(value.cond), self._now(value.body), value.other)
        if isinstance(value, Scan):
            along, body = self.index(value.var), self._now(value.body)
            return body if along.is_const else Scan(value.dtype, value.name, along, body)  # type: ignore[arg-type]
        axes = self._axes(value.axes) if self._axes else value.axes
        if not axes:
            return Const("i64", 0) if value.name.startswith("arg") else self._now(value.body)
        return Reduce(value.dtype, value.name, axes, self._now(value.body))
