"""Parts of a tensor that are read where it is used, each under a mask, where a launch for each costs more."""

from __future__ import annotations

from firebrick.ir.index.expr import ZERO, Expr, total
from firebrick.ir.loops.constructors import TRUE, index_value, masked, op, where
from firebrick.ir.loops.program import Value
from firebrick.lower.context import Lowering, shape_of
from firebrick.lower.tensors import TensorValue

MASKED = 4
"""Parts up to which a concatenation is read in place of being stored."""


def masked_parts(lw: Lowering, parts: list[TensorValue], d: int) -> TensorValue:
    """Parts of one dtype that follow each other along dimension `d` of the node's result."""
    for part in parts:
        lw.reread(part)
    shape = shape_of(lw.node.meta["val"])

    def formula(index: tuple[Expr, ...]) -> Value:
        result: Value | None = None
        high = total(p.shape[d] for p in parts)
        for part in reversed(parts):
            low = high - part.shape[d]
            inside = within(index[d], low, high, shape[d])
            value = masked(inside, part.at((*index[:d], index[d] - low, *index[d + 1 :])), 0)
            below = op("lt", index_value(index[d]), index_value(high))
            result = value if result is None else where(below, value, result)
            high = low
        assert result is not None
        return result

    return lw.formula(formula, sum(p.cost for p in parts) + 3 * len(parts))


def within(i: Expr, low: Expr, high: Expr, size: Expr) -> Value:
    """Whether low <= i < high, where 0 <= i < size is known."""
    above = TRUE if low is ZERO else op("ge", index_value(i), index_value(low))
    return above if high is size else op("and", above, op("lt", index_value(i), index_value(high)))
