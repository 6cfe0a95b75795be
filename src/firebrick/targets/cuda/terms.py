"""Values in a tile's terms: indices in flat variables, and results of folds in place of reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.ir.loops.program import Axis, Load, Store
from firebrick.ir.loops.values import Rewriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firebrick.ir.index.expr import Expr, Var
    from firebrick.ir.loops.program import Value


class Terms(Rewriter):
    """Rewrites values: variables by `subs`, buffers by `names`, and whole values by `known`."""

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
