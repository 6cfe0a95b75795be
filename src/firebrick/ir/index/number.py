"""The numbers that constant expressions are."""

from __future__ import annotations

from firebrick.ir.index.expr import Expr


class NeedsNumber(ValueError):
    """Something takes numbers only, and got an expression."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        super().__init__(f"{expr.show()} is not a constant")


def as_int(e: Expr | int) -> int:
    """The number that a constant expression is.

    Raises:
        NeedsNumber: it is not constant.
    """
    if isinstance(e, Expr) and e.terms:
        raise NeedsNumber(e)
    return e.const if isinstance(e, Expr) else e
