"""Reads the text form of expressions."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from firebrick.ir.index.expr import Expr, const, maximum, minimum

_SIGNS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}  # fmt: skip


def parse(text: str, variables: Mapping[str, Expr]) -> Expr:
    """Read what `Expr.show` wrote; `variables` gives the variables by name.

    Raises:
        ValueError: the text is not an expression, or names an unknown variable.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise ValueError(f"not an index expression: {text!r}") from error
    return from_ast(tree.body, variables)


def from_ast(node: ast.expr, variables: Mapping[str, Expr]) -> Expr:
    """The expression that a Python expression tree denotes.

    Raises:
        ValueError: something in it is outside of the algebra.
    """
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return const(value)
        case ast.Name(id=name) if name in variables:
            return variables[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -from_ast(operand, variables)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _SIGNS:
            return _SIGNS[type(op)](from_ast(left, variables), from_ast(right, variables))
        case ast.Call(func=ast.Name(id=("min" | "max") as name), args=args, keywords=[]) if args:
            pick = minimum if name == "min" else maximum
            return pick(*(from_ast(a, variables) for a in args))
    raise ValueError(f"not an index expression: {ast.unparse(node)!r}")
