"""Which whole numbers a value can be, and the call that checks indices which come from data.

A nest reduces the indices to their greatest and least; the check reads both and raises as eager PyTorch does. The
loads themselves are clamped, so that no order of the two can read outside of a buffer.
"""

from __future__ import annotations

from firebrick.ir.index.expr import INF
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Const, Index, Masked, Op, Reduce, Value

CHECK = "firebrick::check_index"
"""`check_index(extremes, low, high, error, text)` as a library call of a loop program."""

_ANYTHING = -(1 << 80), 1 << 80


def span(value: Value) -> tuple[int, int]:
    """The least and the greatest number that a whole-number value can be, as far as its text tells."""
    return _span(value, {})


def _span(value: Value, spans: dict[Value, tuple[int, int]]) -> tuple[int, int]:
    span = spans.get(value)
    if span is None:
        low, high = _raw(value, spans)
        row = DTYPES[value.dtype]
        # What leaves the type wraps around to anywhere in it.
        span = spans[value] = (low, high) if row.lo <= low and high <= row.hi else (row.lo, row.hi)
    return span


def _raw(value: Value, spans: dict[Value, tuple[int, int]]) -> tuple[int, int]:
    match value:
        case Const() if not DTYPES[value.dtype].is_float:
            return int(value.value), int(value.value)
        case Index():
            return value.expr.lo, value.expr.hi
        case Masked() if not DTYPES[value.dtype].is_float:
            return _union(_span(value.body, spans), _span(value.other, spans))
        case Reduce(name="argmax" | "argmin"):
            count = 1
            for axis in value.axes:
                count *= axis.size.hi if axis.size.hi < INF else 1 << 62
            return 0, max(count - 1, 0)
        case Reduce(name="max" | "min" | "any" | "all") if all(a.size.lo > 0 for a in value.axes):
            return _span(value.body, spans)
        case Op(name="to") if not DTYPES[value.args[0].dtype].is_float:
            return _span(value.args[0], spans)
        case Op() if not DTYPES[value.dtype].is_float and not any(DTYPES[a.dtype].is_float for a in value.args):
            return _of_op(value.name, [_span(a, spans) for a in value.args])
    return _ANYTHING


def _union(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return min(a[0], b[0]), max(a[1], b[1])


def _of_op(name: str, args: list[tuple[int, int]]) -> tuple[int, int]:
    a, b = args[0], args[-1]
    match name:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "neg":
            return -a[1], -a[0]
        case "abs":
            return (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))), max(abs(a[0]), abs(a[1]))
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "where":
            return _union(args[1], args[2])
        case "mod" if b[0] > 0:
            return 0, b[1] - 1
        case "floordiv" if b[0] > 0:
            corners = [x // y for x in a for y in b]
            return min(corners), max(corners)
        case "bitand" if a[0] >= 0 or b[0] >= 0:
            return 0, max(a[1] if a[0] >= 0 else 0, b[1] if b[0] >= 0 else 0)
    return _ANYTHING
