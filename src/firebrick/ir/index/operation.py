"""What computes an expression, one operator at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from firebrick.ir.index.expr import Expr, FloorDiv, Max, Min, Mod, Mul, Var, as_expr

_SIGNS: dict[type[Expr], str] = {FloorDiv: "//", Mod: "%", Min: "min", Max: "max"}


def operation(expr: Expr) -> tuple[str, Sequence[Expr]]:
    """The operator at the top of an expression that is neither number nor variable, and its operands."""
    if isinstance(expr, (FloorDiv, Mod, Min, Max)):
        return _SIGNS[type(expr)], expr.args
    if isinstance(expr, Mul):
        return "*", expr.factors if expr.scale == 1 else (*expr.factors, as_expr(expr.scale))
    parts = [atom * factor for atom, factor in expr.terms]
    return "+", [*parts, as_expr(expr.const)] if expr.const else parts


def as_data(expr: Expr | int) -> Any:
    """Numbers, names of variables, and tuples of an operator and its operands."""
    if not isinstance(expr, Expr) or not expr.terms:
        return expr.const if isinstance(expr, Expr) else expr
    if isinstance(expr, Var):
        return expr.name
    sign, parts = operation(expr)
    return (sign, *map(as_data, parts))
