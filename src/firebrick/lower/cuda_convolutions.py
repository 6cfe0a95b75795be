"""Convolutions where the library adds the bias in a kernel of its own, or where loops are quicker than its kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from firebrick.ir.index.expr import ZERO, Expr
from firebrick.ir.loops.constructors import TRUE, cast, constant, index_value, masked, op, reduce
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Value
from firebrick.lower.context import Declined, Lowering, loop_axes, rules
from firebrick.lower.library_calls import call
from firebrick.lower.tensors import TensorValue

aten = torch.ops.aten

RULES, _rule = rules()


@_rule(aten.convolution.default)
def _convolution(
    lw: Lowering, x: TensorValue, weight: TensorValue, bias: TensorValue | None, *rest: Any
) -> TensorValue:
    """The image without the bias, which what follows adds on its way."""
    if lw.target.adds_bias:
        raise Declined  # asking for a form may ask for sizes that are symbols
    fakes = [n.meta["val"] for n in lw.node.args[:2]]  # type: ignore[union-attr]
    stride, padding, dilation, transposed, _, groups = rest
    val = lw.node.meta["val"]
    form = lw.target.choices("aten::convolution", (*fakes, stride, padding, dilation, groups, val))[0]
    if transposed or form.name != "loops" or lw.config.numerics == "eager":
        if bias is None or not DTYPES[x.dtype].is_float:
            raise Declined
        image = call(lw, x, weight, None, *rest)
    else:
        image = _by_channels(lw, x, weight, stride, padding, dilation)
    if bias is None:
        return image
    compute, added = DTYPES[x.dtype].compute, bias

    def biased(index: tuple[Expr, ...]) -> Value:
        both = [cast(v, compute) for v in (image.at(index), added.at((index[1],)))]
        return cast(op("add", *both), x.dtype)

    return lw.formula(biased, 2)


def _by_channels(lw: Lowering, x: TensorValue, weight: TensorValue, *how: Sequence[int]) -> TensorValue:
    """A window of each channel by itself: each result is the sum of a few products, which one thread adds up."""
    stride, padding, dilation = how
    lw.realize(x)
    lw.realize(weight)
    compute = DTYPES[x.dtype].compute
    window = weight.shape[2:]

    def formula(index: tuple[Expr, ...]) -> Value:
        axes = loop_axes("r", list(window))
        places: list[Expr] = []
        inside: Value = TRUE
        for d, axis in enumerate(axes):
            at = index[2 + d] * stride[d] - padding[d] + axis.var * dilation[d]
            places.append(at)
            if padding[d]:
                inside = op("and", inside, op("ge", index_value(at), constant(0, "i64")))
                inside = op("and", inside, op("lt", index_value(at), index_value(x.shape[2 + d])))
        image = cast(masked(inside, x.at((index[0], index[1], *places)), 0.0), compute)
        factor = cast(weight.at((index[1], ZERO, *[a.var for a in axes])), compute)
        return cast(reduce("sum", axes, op("mul", image, factor)), x.dtype)

    result = lw.formula(formula, 3 * math.prod(int(n.const) for n in window))
    lw.realize(result)
    return result
