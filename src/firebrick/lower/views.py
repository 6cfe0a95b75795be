"""Rules of views: a stored tensor is seen through other strides, a formula through another index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from firebrick.ir.index.expr import ONE, ZERO, Expr, total
from firebrick.ir.loops.dtypes import BY_TORCH
from firebrick.ir.loops.program import Ref
from firebrick.lower.context import (
    Declined,
    Lowering,
    broadcast,
    count_of,
    end_of,
    place_of,
    rules,
    shape_of,
    strides_of,
)
from firebrick.lower.tensors import TensorValue

IndexMap = Callable[[tuple[Expr, ...]], tuple[Expr, ...]]

aten = torch.ops.aten
prims = torch.ops.prims

RULES, _rule = rules()


def restride(
    lw: Lowering, x: TensorValue, remap: Callable[[], IndexMap], fake: torch.Tensor | None = None
) -> TensorValue:
    """The node's result as a view of `x`: other strides of the same buffer, or `x` at another index."""
    val: torch.Tensor = lw.node.meta["val"] if fake is None else fake
    shape, strides = shape_of(val), strides_of(val)
    base: torch.Tensor = lw.node.args[0].meta["val"]  # type: ignore[union-attr]
    base_strides = strides_of(base)
    # Where the layout doesn't allow a view, `reshape` copies. Equal calls of repeated layers carry the fake values of
    # the first, so storages of two nodes can't be compared.
    shared = lw.node.target is not aten.reshape.default or (val.is_contiguous() and base.is_contiguous())
    shift: Expr = ZERO
    if shared and (val.storage_offset() or base.storage_offset()):
        # Not their difference: a pass may have put a part of a tensor in the place of the base that `val` was made of.
        shift = total(i * s for i, s in zip(remap()((ZERO,) * len(shape)), base_strides, strict=True))

    def see(ref: Ref) -> Ref | None:
        return Ref(ref.buffer, shape, strides, ref.offset + shift, ref.dtype) if ref.strides == base_strides else None

    if x.ref is not None and shared:
        seen = see(x.ref)
        if seen is not None:
            return TensorValue(shape, x.dtype, strides, ref=seen)
    move = remap()
    value = lw.formula(lambda index: x.at(move(index)), x.cost, val)
    # A view of a part computes the part alone; any other is stored as its base is.
    if shared and value.ref is None and x.ref is None and count_of(val) >= count_of(base):
        value.base, value.see = x, see
    return value


# ---------------------------------------------------------------- maps of indices


def reshape_map(old: Sequence[Expr], new: Sequence[Expr]) -> IndexMap:
    """How an index of shape `new` maps to one of shape `old` with the same elements in the same order."""
    groups: list[tuple[list[int], list[int]]] = []  # dimensions of old and of new that hold the same elements
    i = j = 0
    while i < len(old) or j < len(new):
        left: list[int] = []
        right: list[int] = []
        a: Expr = ONE
        b: Expr = ONE
        if i < len(old):
            left.append(i)
            a, i = old[i], i + 1
        while a is not b or not (left or right):
            # Grow the side that holds fewer elements until both hold as many.
            if j < len(new) and (i >= len(old) or (b - a).hi <= 0):
                right.append(j)
                b, j = b * new[j], j + 1
            elif i < len(old):
                left.append(i)
                a, i = a * old[i], i + 1
            elif j < len(new):
                right.append(j)
                b, j = b * new[j], j + 1
            else:
                raise Declined
        groups.append((left, right))

    def move(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        result: list[Expr] = [ZERO] * len(old)
        for left, right in groups:
            _move_group(left, right, old, new, index, result)
        return tuple(result)

    return move


def _move_group(
    left: list[int],
    right: list[int],
    old: Sequence[Expr],
    new: Sequence[Expr],
    index: tuple[Expr, ...],
    out: list[Expr],
) -> None:
    sources = [d for d in right if new[d] is not ONE]
    targets = [d for d in left if old[d] is not ONE]
    if any(old[d] is ZERO for d in targets):
        return  # there is no element that an index could name
    if len(sources) == 1 and len(targets) == 1:
        out[targets[0]] = index[sources[0]]
        return
    flat: Expr = ZERO
    for d in sources:
        flat = flat * new[d] + index[d]
    for d in reversed(targets):
        if d == targets[0]:
            out[d] = flat
        else:
            out[d] = flat % old[d]
            flat = flat // old[d]


def _permute_map(order: Sequence[int]) -> IndexMap:
    back = [0] * len(order)
    for new, old in enumerate(order):
        back[old] = new
    return lambda index: tuple(index[d] for d in back)


# ---------------------------------------------------------------- rules


@_rule(
    aten.view.default,
    aten.reshape.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    prims.view_of.default,
)
def _reshape(lw: Lowering, x: TensorValue, *_args: Any) -> TensorValue:
    return restride(lw, x, lambda: reshape_map(x.shape, shape_of(lw.node.meta["val"])))


@_rule(aten.detach.default, aten.alias.default, aten.lift_fresh.default)
def _same(lw: Lowering, x: TensorValue) -> TensorValue:
    return x


@_rule(aten.permute.default)
def _permute(lw: Lowering, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    return restride(lw, x, lambda: _permute_map([d % x.rank for d in dims]))


@_rule(aten.transpose.int)
def _transpose(lw: Lowering, x: TensorValue, a: int, b: int) -> TensorValue:
    if x.rank == 0:
        return x
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return restride(lw, x, lambda: _permute_map(order))


@_rule(aten.t.default)
def _t(lw: Lowering, x: TensorValue) -> TensorValue:
    return restride(lw, x, lambda: _permute_map(list(reversed(range(x.rank)))))


@_rule(aten.expand.default)
def _expand(lw: Lowering, x: TensorValue, _size: Sequence[int], *, implicit: bool = False) -> TensorValue:
    shape = shape_of(lw.node.meta["val"])
    if shape != x.shape:
        lw.reread(x)
    return restride(lw, x, lambda: broadcast(x.shape, shape))


@_rule(aten.slice.Tensor)
def _slice(
    lw: Lowering, x: TensorValue, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> TensorValue:
    d = dim % x.rank
    size = x.shape[d]
    first = end_of(0 if start is None else start, size)
    return restride(lw, x, lambda: lambda i: (*i[:d], i[d] * step + first, *i[d + 1 :]))


@_rule(aten.select.int)
def _select(lw: Lowering, x: TensorValue, dim: int, position: int) -> TensorValue:
    d = dim % x.rank
    at = place_of(position, x.shape[d])
    return restride(lw, x, lambda: lambda index: (*index[:d], at, *index[d:]))


@_rule(aten.diagonal.default)
def _diagonal(lw: Lowering, x: TensorValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> TensorValue:
    a, b = dim1 % x.rank, dim2 % x.rank

    def move(index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        rest, k = list(index[:-1]), index[-1]
        at = {a: k + max(-offset, 0), b: k + max(offset, 0)}
        return tuple(at[d] if d in at else rest.pop(0) for d in range(x.rank))

    return restride(lw, x, lambda: move)


@_rule(aten.unfold.default)
def _unfold(lw: Lowering, x: TensorValue, dim: int, size: int, step: int) -> TensorValue:
    if x.rank == 0:
        raise Declined
    d = dim % x.rank
    if x.ref is None:
        lw.reread(x)
    return restride(lw, x, lambda: lambda i: (*i[:d], i[d] * step + i[-1], *i[d + 1 : -1]))


@_rule(aten.as_strided.default)
def _as_strided(
    lw: Lowering, x: TensorValue, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> TensorValue:
    ref = lw.realize(x)
    val, base = lw.node.meta["val"], lw.node.args[0].meta["val"]  # type: ignore[union-attr]
    if ref.strides != strides_of(base):
        raise Declined
    shape, strides = shape_of(val), strides_of(val)
    # The graph says where; the value may be that of an equal view taken before its memory was written.
    start = ref.offset + (int(val.storage_offset() if offset is None else offset) - int(base.storage_offset()))
    return TensorValue(shape, x.dtype, strides, ref=Ref(ref.buffer, shape, strides, start, ref.dtype))


@_rule(aten.view.dtype)
def _view_dtype(lw: Lowering, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    ref = lw.realize(x)
    val, base = lw.node.meta["val"], lw.node.args[0].meta["val"]  # type: ignore[union-attr]
    if ref.strides != strides_of(base) or ref.dtype is not None or val.dtype.itemsize != base.dtype.itemsize:
        raise Declined
    name = BY_TORCH[dtype].name
    if name == x.dtype:
        return x
    # Loops read a buffer in its own dtype only, so the other bytes are a copy made by the library.
    raise Declined


@_rule(aten.flip.default)
def _flip(lw: Lowering, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    flipped = {d % x.rank for d in dims} if x.rank else set()
    if x.rank - 1 in flipped:
        lw.prefer(3.0, 1.0, count_of(lw.node.meta["val"]))  # neighbours in turned order
    return lw.formula(
        lambda index: x.at(tuple(x.shape[d] - 1 - i if d in flipped else i for d, i in enumerate(index))), x.cost
    )


@_rule(aten.roll.default)
def _roll(lw: Lowering, x: TensorValue, shifts: Sequence[int], dims: Sequence[int] = ()) -> TensorValue:
    lw.prefer(3.0, 1.0, count_of(lw.node.meta["val"]))  # a division an element
    if not dims:
        if len(shifts) != 1:
            raise Declined
        size: Expr = ONE
        for n in x.shape:
            size = size * n
        if size is ZERO:
            return lw.formula(x.at, x.cost)
        back, there = reshape_map((size,), x.shape), reshape_map(x.shape, (size,))
        return lw.formula(lambda index: x.at(there(((back(index)[0] - shifts[0]) % size,))), x.cost)
    moves = [0] * x.rank
    for shift, d in zip(shifts, dims, strict=True):
        moves[d] += shift
    return lw.formula(
        lambda index: x.at(
            tuple((i - s) % n if s and n is not ONE else i for i, s, n in zip(index, moves, x.shape, strict=True))
        ),
        x.cost,
    )
