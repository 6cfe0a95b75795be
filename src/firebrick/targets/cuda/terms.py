"""Values in a tile's terms: indices in flat variables, and results of folds in place of reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.ir.loops.program import Const, Index, Load, Masked, Op, Reduce, Scan, Store
from firebrick.ir.loops.values import ordered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firebrick.ir.index.expr import Expr, Var
    from firebrick.ir.loops.program import Value


class Terms:
    """Rewrites values: variables by `subs`, buffers by `names`, and whole values by `known`."""

    def __init__(
        self,
        subs: Mapping[Var, Expr],
        known: Mapping[Value, Value] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._subs = subs
        self._known = known if known is not None else {}
        self._names = names or {}
        self._memo: dict[Value, Value] = {}

    def index(self, e: Expr) -> Expr:
        """An index in the new terms."""
        return e.subs(self._subs)

    def __call__(self, value: Value) -> Value:
        """The value in the new terms."""
        for v in ordered([value], lambda v: v in self._known or v in self._memo):
            self._memo[v] = self._rebuilt(v)
        return self._now(value)

    def store(self, s: Store) -> Store:
        """A store in the new terms."""
        binds = tuple([(self.index(v), self(b)) for v, b in s.binds])
        name = self._names.get(s.buffer, s.buffer)
        return Store(name, self.index(s.index), self(s.value), s.mode, binds)  # type: ignore[arg-type]

    def _now(self, v: Value) -> Value:
        found = self._known.get(v)
        return found if found is not None else self._memo[v]

    def _rebuilt(self, v: Value) -> Value:
        match v:
            case Const():
                return v
            case Index():
                return Index(v.dtype, self.index(v.expr))
            case Load():
                binds = tuple([(self.index(x), self._now(b)) for x, b in v.binds])
                return Load(v.dtype, self._names.get(v.buffer, v.buffer), self.index(v.index), binds)  # type: ignore[arg-type]
            case Op():
                return Op(v.dtype, v.name, tuple([self._now(a) for a in v.args]))
            case Masked():
                return Masked(v.dtype, self._now(v.cond), self._now(v.body), v.other)
            case Scan():
                along, body = self.index(v.var), self._now(v.body)
                return body if along.is_const else Scan(v.dtype, v.name, along, body)  # type: ignore[arg-type]
            case Reduce():
                axes = tuple([type(a)(self.index(a.var), self.index(a.size)) for a in v.axes])  # type: ignore[arg-type]
                return Reduce(v.dtype, v.name, axes, self._now(v.body))
