"""Finds how the loops of two groups correspond, from the addresses that both use.

Two addresses match when their strides do, after axes are split where one walks in one step what the other walks in two:

    512*i + j, j in 512    and    512*a + 64*h + d    give    a = i, and j = 64*h + d
"""

from __future__ import annotations

from collections.abc import Iterable

from firebrick.ir.index.expr import ZERO, Expr, Var, floordiv, mod, var
from firebrick.ir.loops.values import hint


class Names:
    """Makes variables of groups; their names are unique within one schedule."""

    def __init__(self) -> None:
        self._count = 0

    def fresh(self, size: Expr) -> Var:
        """A variable that runs over range(size)."""
        self._count += 1
        return var(f"g{self._count}", 0, max(0, size.hi - 1), size)


class Unifier:
    """Substitutions for the variables of two groups, `mine` and `theirs`, found address by address.

    separate: sets of their variables of which no two may become one (the loops of one nest).
    """

    def __init__(
        self, mine: dict[Var, Expr], theirs: dict[Var, Expr], separate: Iterable[frozenset[Var]], names: Names
    ) -> None:
        self.sizes = {**mine, **theirs}
        self._mine = set(mine)
        self._separate = [set(s) for s in separate]
        self._names = names
        self.subs: dict[Var, Expr] = {}

    def apply(self, e: Expr) -> Expr:
        """An address in the common terms."""
        return e.subs(self.subs) if self.subs else e

    def expand(self, variables: Iterable[Var]) -> list[Var]:
        """The variables that took the place of `variables`, outer parts of split ones first."""
        out: list[Var] = []
        for v in variables:
            e = self.subs.get(v)
            if e is None:
                out.append(v)
            else:
                out.extend(sorted((x for x in e.vars() if x in self.sizes), key=lambda x: -self._step(e, x)))
        return out

    @staticmethod
    def _step(e: Expr, v: Var) -> int:
        stride = e.coeff(v)
        return hint(stride) if stride is not None else 0

    def match(self, a: Expr, b: Expr) -> bool:
        """Make the address `b` of theirs equal to the address `a` of mine, if that can be; else change nothing."""
        saved = dict(self.subs), dict(self.sizes), set(self._mine), [set(s) for s in self._separate]
        if self._match(a, b):
            return True
        self.subs, self.sizes, self._mine, self._separate = saved
        return False

    def _match(self, a: Expr, b: Expr) -> bool:
        for _ in range(16):
            x, y = self.apply(a), self.apply(b)
            if x is y:
                return True
            left, right = self._layout(x, y), self._layout(y, x)
            if not left or not right:
                return False
            (step, v), (other, w) = left[0], right[0]
            if step is not other:
                return False
            m, n = self.sizes[v], self.sizes[w]
            if m is n:
                if v not in self._mine or w in self._mine or not self._bind(w, v):
                    return False
            elif hint(m) > hint(n) and mod(m, n) is ZERO:
                self._split(v, n)
            elif hint(n) > hint(m) and mod(n, m) is ZERO:
                self._split(w, m)
            else:
                return False
        return False

    def _layout(self, e: Expr, against: Expr) -> list[tuple[Expr, Var]]:
        """Strides of the variables of `e`, smallest first, those left out that `against` has with the same stride."""
        out = []
        for v in e.vars():
            if v not in self.sizes:
                continue
            stride = e.coeff(v)
            if stride is None:
                return []
            if v in against.vars() and against.coeff(v) is stride:
                continue
            out.append((stride, v))
        out.sort(key=lambda t: (hint(t[0]), t[1].name))
        return out

    def _bind(self, theirs: Var, mine: Var) -> bool:
        for group in self._separate:
            if theirs in group and mine in group:
                return False
        self._replace(theirs, mine, (mine,))
        return True

    def _split(self, v: Var, inner: Expr) -> None:
        """v -> inner*hi + lo."""
        hi = self._names.fresh(floordiv(self.sizes[v], inner))
        lo = self._names.fresh(inner)
        self.sizes[hi] = floordiv(self.sizes[v], inner)
        self.sizes[lo] = inner
        if v in self._mine:
            self._mine.update((hi, lo))
        self._replace(v, hi * inner + lo, (hi, lo))

    def _replace(self, v: Var, by: Expr, parts: tuple[Var, ...]) -> None:
        one = {v: by}
        for key, e in self.subs.items():
            self.subs[key] = e.subs(one)
        self.subs[v] = by
        for group in self._separate:
            if v in group:
                group.discard(v)
                group.update(parts)
