"""Rules of padding by elements of the tensor itself.

The last dimension is stored in bands (before, inside, behind), each of which reads in a straight line. In the others,
which element stands at a place is computed once a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch

from firebrick.ir.index.expr import ZERO, Expr, as_expr, as_int, const, maximum, minimum
from firebrick.ir.loops.program import Ref, Value
from firebrick.lower.context import Declined, Lowering, dense_strides, rules, shape_of, strides_of
from firebrick.lower.tensors import TensorValue

aten = torch.ops.aten

RULES, _rule = rules()

_REFLECT = (aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
_REPLICATE = (aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default)


def _mirrored(j: Expr, n: int) -> Expr:
    """Where place j of a reflected dimension is read: 2 1 | 0 1 2 3 | 2 1."""
    away = maximum(j, -j)
    return minimum(away, 2 * (n - 1) - away)


def _nearest(j: Expr, n: int) -> Expr:
    return minimum(maximum(j, ZERO), const(n - 1))


@_rule(*_REFLECT, *_REPLICATE)
def _pad(lw: Lowering, x: TensorValue, pads: Sequence[int]) -> TensorValue:
    source = _mirrored if lw.node.target in _REFLECT else _nearest
    val = lw.node.meta["val"]
    shape, strides = shape_of(val), dense_strides(shape_of(val), strides_of(val))
    sizes = [as_int(n) for n in x.shape]
    before = [0] * (x.rank - len(pads) // 2) + [*pads[-2::-2]]
    padded = x.rank - len(pads) // 2
    result = TensorValue(shape, x.dtype, strides, ref=Ref(lw.buffer(x.dtype, shape, strides), shape, strides, ZERO))
    if ZERO in shape:
        return result
    if ZERO in x.shape:
        raise Declined
    lw.reread(x)

    def band(shift: int) -> Callable[[tuple[Expr, ...]], Value]:
        def formula(index: tuple[Expr, ...]) -> Value:
            at = [source(i - before[d], sizes[d]) if padded <= d else i for d, i in enumerate(index[:-1])]
            return x.at((*at, source(index[-1] + shift, sizes[-1])))

        return formula

    ref = result.ref
    assert ref is not None
    for first, count in _bands(before[-1], sizes[-1], as_int(shape[-1])):
        part = (*shape[:-1], as_expr(count))
        padding = TensorValue(part, x.dtype, strides, formula=band(first - before[-1]), cost=x.cost, parts=lw.parts)
        lw.store(padding, Ref(ref.buffer, part, strides, strides[-1] * first))
    return result


def _bands(before: int, inside: int, size: int) -> Iterator[tuple[int, int]]:
    """(first place, count) of what lies before, inside and behind the tensor."""
    edges = (0, min(max(before, 0), size), max(min(before + inside, size), 0), size)
    return ((a, b - a) for a, b in pairwise(edges) if b > a)
