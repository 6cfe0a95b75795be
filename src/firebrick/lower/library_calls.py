"""Rules of ops that are library kernels: matmuls write where they are told, and everything without a rule is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from firebrick.errors import LoweringError
from firebrick.ir.index.expr import ONE, ZERO, Expr
from firebrick.ir.loops.constructors import cast, op
from firebrick.ir.loops.dtypes import BY_TORCH, DTYPES
from firebrick.ir.loops.program import Enum, Extern, Ref
from firebrick.ir.operators.convolution_op import convolution_op
from firebrick.ir.operators.linear_op import attention_op, linear_op
from firebrick.ir.operators.panel_op import panel_convolution_op, panel_op
from firebrick.ir.operators.recurrent_op import recurrent_op
from firebrick.lower.context import Lowering, broadcast, dense_strides, may_overlap, shape_of, strides_of
from firebrick.lower.tensors import TensorValue, contiguous_strides
from firebrick.runtime.cuda_attention import SEEDED

aten = torch.ops.aten

_OUT_VARIANTS: Mapping[Any, str] = {
    aten.mm.default: "aten::mm.out", aten.addmm.default: "aten::addmm.out", aten.bmm.default: "aten::bmm.out",
    aten.baddbmm.default: "aten::baddbmm.out",
}  # fmt: skip
"""Op -> its variant that writes a given tensor, so that the memory plan can place the result."""
_OF_STORAGES = frozenset({aten.as_strided.default, aten.as_strided_scatter.default})


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
    if ref.strides != dense_strides(ref.shape, ref.strides) and may_overlap(ref):
        raise LoweringError(f"{lw.node.target} of memory that overlaps has no place in a compiled graph")
    return _stored(lw, x, ref.strides, held=True)


def _into(lw: Lowering, *args: Any, **kwargs: Any) -> Any:
    """A matmul in the library; of one row a sum in loops, where the target would rather have it so."""
    val, (*added, x, y) = lw.node.meta["val"], args
    row = not kwargs and x.rank == 2 and x.shape[0] is ONE and lw.config.numerics != "eager"
    if row and lw.target.choices("aten::mv", (lw.node.args[-1].meta["val"].t(),))[0].name == "loops":  # type: ignore
        return _row(lw, x, y, added)
    if not BY_TORCH[val.dtype].loops or strides_of(val) != contiguous_strides(shape_of(val)):
        return call(lw, *args, **kwargs)
    return lw.extern(_OUT_VARIANTS[lw.node.target], args, kwargs, into=True)


def _row(lw: Lowering, x: TensorValue, y: TensorValue, added: list[TensorValue]) -> TensorValue:
    lw.realize(x)
    wide, shape = DTYPES[x.dtype].compute, (ONE, y.shape[1])
    bias = lambda at: [cast(a.at(broadcast(a.shape, shape)(at)), wide) for a in added]  # noqa: E731
    finish = lambda v, at: cast(op("add", v, *bias(at)) if added else v, x.dtype)  # noqa: E731
    terms = lambda at: op("mul", cast(x.at((ZERO, at[0])), wide), cast(y.at(at), wide))  # noqa: E731
    source = TensorValue(y.shape, wide, y.strides, formula=terms)
    return lw.reduction("sum", source, (0,), body=lambda v, _: v, finish=finish, fake=lw.node.meta["val"])


def _handwritten(lw: Lowering, *args: Any) -> Any:
    """An op for which targets have kernels: its tensors are stored as the kernel wants them."""
    schema, val = lw.node.target._schema, lw.node.meta["val"]  # type: ignore[union-attr]
    shape = shape_of(val[0] if isinstance(val, (tuple, list)) else val)
    wanted = iter(lw.target.layouts(schema.name, _each(args, lambda t: _lies(lw, t)), shape))

    def stored(t: TensorValue) -> TensorValue:
        strides = next(wanted)
        return t if strides is None else _stored(lw, t, strides)

    return lw.extern(f"{schema.name}.out", _each(args, stored), {}, into=True)


def _each(value: Any, change: Callable[[TensorValue], Any]) -> Any:
    """Arguments with their tensors changed."""
    if isinstance(value, (tuple, list)):
        return [_each(v, change) for v in value]
    return change(value) if isinstance(value, TensorValue) else value


def _lies(lw: Lowering, x: TensorValue) -> Ref:
    """Where a tensor lies; what is not stored yet would be stored without gaps, whatever its strides say."""
    if x.ref is None and x.base is None:
        return Ref("", x.shape, dense_strides(x.shape, x.strides), ZERO)
    return lw.realize(x)


def _stored(lw: Lowering, x: TensorValue, strides: tuple[Expr, ...], *, held: bool = False) -> TensorValue:
    """The tensor in memory of its own, in this order; `held`: in the library's, which lives as long as its views."""
    ref = Ref(lw.buffer(x.dtype, x.shape, strides), x.shape, strides, ZERO)
    if held:
        kind = ("dtype", Enum("dtype", x.dtype)), ("device", Enum("device", lw.device))
        call = f"n{len(lw.nodes)}", "aten::empty_strided", (x.shape, strides), kind, (ref.buffer,)
        lw.nodes.append(Extern(*call, device=lw.device))
    lw.store(x, ref)
    return TensorValue(x.shape, x.dtype, strides, ref=ref)


def _masked(lw: Lowering, *args: Any, **kwargs: Any) -> Any:
    """Attention, with a mask as eager's lies: rows begin at multiples, and what repeats is there once."""
    x = args[[a.name for a in lw.node.target._schema.arguments].index("attn_bias")]  # type: ignore[union-attr]
    if x is not None and (x.ref is None or x.ref.strides != x.strides):
        once = tuple([ONE if s is ZERO else n for n, s in zip(x.shape, x.strides, strict=True)])
        rows = _stored(lw, TensorValue(once, x.dtype, x.strides, formula=x.at), x.strides)
        x.stored(Ref(lw.realize(rows).buffer, x.shape, x.strides, ZERO))
    return call(lw, *args, **kwargs)


RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((*SEEDED, *SEEDED.values()), _masked),
    **dict.fromkeys(_OUT_VARIANTS, _into),
    **dict.fromkeys((linear_op, convolution_op, recurrent_op, attention_op), _handwritten),
    **dict.fromkeys((panel_op, panel_convolution_op), _handwritten),
}
"""OpOverload -> rule."""
