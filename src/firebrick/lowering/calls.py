"""Rules of ops that are library kernels: matmuls write where they are told, and everything without a rule is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from firebrick.errors import LoweringError
from firebrick.extend.convolution import convolution_op
from firebrick.extend.linear import linear_op
from firebrick.extend.recurrent import recurrent_op
from firebrick.loops.dtypes import BY_TORCH
from firebrick.loops.ir import Extern, Ref
from firebrick.lowering.context import Lowering, dense_strides, shape_of, strides_of
from firebrick.lowering.tensors import TensorValue, contiguous_strides
from firebrick.symbolic.expr import ONE, ZERO, as_int

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from firebrick.symbolic.expr import Expr

__all__ = ["RULES", "call", "call_on_constants"]

aten = torch.ops.aten

_OUT_VARIANTS: Mapping[Any, str] = {
    aten.mm.default: "aten::mm.out",
    aten.addmm.default: "aten::addmm.out",
    aten.bmm.default: "aten::bmm.out",
    aten.baddbmm.default: "aten::baddbmm.out",
}
"""Op -> its variant that writes a given tensor, so that the memory plan can place the result."""
_OF_STORAGES = frozenset({aten.as_strided.default, aten.as_strided_scatter.default})
_PAGE, _LINE = 1024, 16
"""Elements after which addresses share lines of a first-level cache, and of one line."""


def call(lw: Lowering, *args: Any, **kwargs: Any) -> Any:
    """Call the node's own op in the library."""
    target: Any = lw.node.target
    if target in _OF_STORAGES:
        raise LoweringError(f"{target} counts from the beginning of memory that the graph lays out itself")
    if target.is_view and args and isinstance(args[0], TensorValue):
        args = (_copied(lw, args[0]), *args[1:])
    return call_on_constants(lw, *args, **kwargs)


def call_on_constants(lw: Lowering, *args: Any, **kwargs: Any) -> Any:
    """Call the node's own op on tensors that nobody writes: a view of one shares its memory."""
    schema = lw.node.target._schema  # type: ignore[union-attr]
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return lw.extern(name, args, kwargs)


def _copied(lw: Lowering, x: TensorValue) -> TensorValue:
    """A copy that only the view made from it uses: nobody could know that the library's view shares x's memory."""
    ref = lw.realize(x)
    if ref.strides != dense_strides(ref.shape, ref.strides):
        raise LoweringError(f"{lw.node.target} of memory with gaps has no place in a compiled graph")
    copy = lw.buffer(x.dtype, ref.shape, ref.strides)
    lw.nodes.append(Extern(f"n{len(lw.nodes)}", "aten::clone", (ref,), (), (copy,), origin=lw.origin))
    return TensorValue(x.shape, x.dtype, ref.strides, ref=Ref(copy, ref.shape, ref.strides, ZERO))


def _into(lw: Lowering, *args: Any, **kwargs: Any) -> Any:
    val = lw.node.meta["val"]
    if not BY_TORCH[val.dtype].loops or strides_of(val) != contiguous_strides(shape_of(val)):
        return call(lw, *args, **kwargs)
    return lw.extern(_OUT_VARIANTS[lw.node.target], args, kwargs, into=True)


def _linear(lw: Lowering, x: TensorValue, weight: Any, scale: Any, bias: Any, other: Any, *args: Any) -> Any:
    """Matmuls: their kernel wants the elements of a row side by side, and those of the weight along one axis."""
    if len(weight.shape) > 2:  # one of many, and no constant
        sides = zip(weight.shape[1:], lw.realize(weight).strides[1:], strict=True)
        weight = weight if any(ONE in side for side in sides) else _stored(lw, weight, contiguous_strides(weight.shape))
    x, other = (
        _stored(lw, t, contiguous_strides(t.shape)) if t is not None and not _in_rows(lw.realize(t)) else t
        for t in (x, other)
    )
    return lw.extern("firebrick::linear.out", (x, weight, scale, bias, other, *args), {}, into=True)


def _in_rows(ref: Ref) -> bool:
    """Whether a kernel can read it: elements of a row side by side, rows a known number of elements apart."""
    return ref.strides[-1] is ONE and ref.offset.is_const and all(s.is_const for s in ref.strides)


def _convolution(lw: Lowering, x: TensorValue, packed: Any, bias: Any, other: TensorValue | None, *args: Any) -> Any:
    """A convolution with packed weights: its kernel wants the channels of a pixel side by side."""
    # What is not stored yet is stored without gaps, in another order than its strides say if these have gaps.
    computed = x.ref is None and x.base is None
    strides = dense_strides(x.shape, x.strides) if computed else lw.realize(x).strides
    whole = len(packed.shape) == 5 and any(args[2])  # a dense one that pads by itself takes lines as wholes
    moved = strides[1] is not ONE or (whole and strides[3] != x.shape[1])
    apart = _collide(lw, packed, x.shape[1] if moved else strides[3], *args)
    if moved or apart:
        x = _stored(lw, x, _channels_last(x.shape, _LINE if apart else 0))
    if other is not None and lw.realize(other).strides != _channels_last(other.shape):
        other = _stored(lw, other, _channels_last(other.shape))
    return lw.extern("firebrick::convolution.out", (x, packed, bias, other, *args), {}, into=True)


def _collide(lw: Lowering, packed: Any, column: Expr, _outer: int, stride: Any, padding: Any, *_args: Any) -> bool:
    """Whether the pixels that a tile of a dense convolution reads in turns lie in the same lines of a cache."""
    many = lw.node.meta["val"].shape[3] > 8 and len(packed.shape) >= 4 and not any(padding)
    return many and as_int(column) * stride[1] % _PAGE == 0


def _recurrent(lw: Lowering, cell: str, projected: Any, weights: Any, biases: Any, *states: Any) -> Any:
    """A recurrent layer: its kernel wants weights and states without gaps, and the gates of an input side by side."""
    projected = [p if lw.realize(p).strides[2] is ONE else _dense(lw, p) for p in projected]
    rest = [[_dense(lw, t) for t in tensors if t is not None] for tensors in (weights, biases, states)]
    hidden, state = (*rest[2], None)[:2]
    return lw.extern("firebrick::recurrent.out", (cell, projected, *rest[:2], hidden, state), {}, into=True)


def _dense(lw: Lowering, x: TensorValue) -> TensorValue:
    """The tensor in memory, its elements in order."""
    strides = contiguous_strides(x.shape)
    return x if lw.realize(x).strides == strides else _stored(lw, x, strides)


def _channels_last(shape: tuple[Expr, ...], gap: int = 0) -> tuple[Expr, ...]:
    """gap: elements between the channels of a pixel and those of the next one."""
    batch, channels, height, width = shape
    by_batch, by_row, by_column, by_channel = contiguous_strides((batch, height, width, channels + gap))
    return by_batch, by_channel, by_row, by_column


def _stored(lw: Lowering, x: TensorValue, strides: tuple[Expr, ...]) -> TensorValue:
    """The tensor in memory of its own, in this order."""
    ref = Ref(lw.buffer(x.dtype, x.shape, strides), x.shape, strides, ZERO)
    lw.store(x, ref)
    return TensorValue(x.shape, x.dtype, strides, ref=ref)


RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_OUT_VARIANTS, _into),
    linear_op: _linear,
    convolution_op: _convolution,
    recurrent_op: _recurrent,
}
"""OpOverload -> rule."""
