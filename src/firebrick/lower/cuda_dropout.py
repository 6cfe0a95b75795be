"""Dropout with the numbers that eager draws on a GPU, drawn where they are used (bench/GPU.md, "Dropout's numbers").

A call before the kernel takes what eager's would take from the generator, in the order of the program; the kernel gets
it by value. So a graph of it, ours or the user's, goes on with the numbers as eager's kernel in it would.
"""

from __future__ import annotations

from bisect import bisect_left

import torch

from firebrick.ir.index.expr import ZERO, Expr, as_expr, total
from firebrick.ir.index.sizes import size_of
from firebrick.ir.loops.constructors import cast, constant, index_value, load, op
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Extern, Ref, Value
from firebrick.lower.context import Declined, Lowering, rules
from firebrick.lower.pointwise import elementwise
from firebrick.lower.tensors import TensorValue, contiguous_strides

RULES, _rule = rules()

_DTYPES = frozenset({"f32", "f16", "bf16"})
_LINE = 16
"""Bytes that a thread of eager's kernel reads at once, if addresses and the number of elements allow it."""


@_rule(torch.ops.aten.native_dropout.default)
def _dropout(lw: Lowering, a: TensorValue, p: float, train: bool | None) -> tuple[TensorValue, TensorValue]:
    out, mask = lw.node.meta["val"]
    if not train and train is not None:
        keep_mask = elementwise(lw, lambda _: constant(True, "b8"), (a,), None, 0, mask)
        return elementwise(lw, lambda x: x, (a,), None, 0, out), keep_mask
    source, strides = lw.node.args[0].meta["val"], contiguous_strides(a.shape)  # type: ignore[union-attr]
    # The caller's memory may begin anywhere.
    ref = next((a.ref for b in lw.buffers if a.ref is not None and b.name == a.ref.buffer and b.kind != "temp"), None)
    place = 0 if ref is not None else source.storage_offset()
    in_lines = isinstance(place, int) and place * source.element_size() % _LINE == 0 and a.strides == strides
    if not lw.target.draws or a.dtype not in _DTYPES or not in_lines or not 0 < p < 1 or ZERO in a.shape:
        raise Declined
    limit, single = constant(1.0 - p, "f32").value, lambda x: constant(x, "f32").value
    # The least word that is no number below the limit: words are rounded to float32.
    bound = bisect_left(range(1 << 32), limit, key=lambda word: single(single(word) * 2**-32 + 2**-33))
    numbers = _numbers(lw, ref, as_expr(size_of(out.numel())), DTYPES[a.dtype].nbytes)

    def keeps(index: tuple[Expr, ...]) -> Value:
        element = total(i * s for i, s in zip(index, strides, strict=True))
        return op("drawn", index_value(element), *numbers, constant(bound, "i64"))

    def scaled(index: tuple[Expr, ...]) -> Value:
        x, keep = (cast(v.at(index), "f32") for v in (a, keep_mask))
        return cast(op("mul", op("mul", x, keep), constant(1.0 / limit, "f32")), a.dtype)

    keep_mask = lw.formula(keeps, 40, mask)
    if 1 in lw.used:
        lw.realize(keep_mask)
    return lw.formula(scaled, a.cost + 4, out), keep_mask


def _numbers(lw: Lowering, ref: Ref | None, count: Expr, size: int) -> list[Value]:
    """Seed, offset and place in a graph of a draw, elements that a thread has together, and threads."""
    names = [lw.buffer("i64", (), (), device="cpu") for _ in range(5)]
    args = (ref, size, count, lw.target.draws, int(lw.device.partition(":")[2] or 0))
    call = f"n{len(lw.nodes)}", "firebrick::draw", args, (), tuple(names), False, (), lw.origin, lw.own, lw.device
    lw.nodes.append(Extern(*call))
    numbers: list[Value] = [load(name, "i64", ZERO) for name in names]
    if count.is_const:
        numbers[4] = constant(256 * min(lw.target.draws, -(-count.const // 256)), "i64")
        together = _LINE // size
        while count.const % together:
            together //= 2
        numbers[3] = constant(together, "i64") if ref is None or together == 1 else numbers[3]
    return numbers
