"""Storages and views: how in-place ops on aliased tensors become functional values.

Every traced tensor is a `Value`: a chain of view steps over a `Storage`. A storage holds the current
functional value of the whole memory; a write through a view builds the storage's next value with the
inverse of each step, and other views of the storage are rebuilt when they are next read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from firebrick.errors import LoweringError
from firebrick.fakes.promotion import NoRule
from firebrick.fakes.strides import by_stride, dense_strides, is_dense
from firebrick.fakes.view_rules import view
from firebrick.ir.index.sizes import expressions
from firebrick.runtime.bits import Bits, bits_of
from firebrick.trace.tape import Record

Emit = Callable[..., Record]

aten = torch.ops.aten


class ViewStep(NamedTuple):
    """One view op and the arguments after its tensor; `as_strided` applies to the storage, offset from its base."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


BIT_OPS: dict[OpOverload, OpOverload] = {
    aten._conj.default: aten._conj_physical.default,
    aten._neg_view.default: aten.neg.default,
}
"""View that only sets a bit -> what computes its numbers."""


def steps_of(bits: Bits) -> tuple[ViewStep, ...]:
    """The views that give a tensor these bits."""
    return tuple([ViewStep(op, ()) for op, is_on in zip(BIT_OPS, bits, strict=True) if is_on])


def switched(record: Record, bits: Bits, emit: Emit) -> Record:
    """Return the numbers that memory holds for a tensor of these bits, or those of a tensor on such memory."""
    for step in steps_of(bits):
        record = emit(BIT_OPS[step.op], record)
    return record


class Origin(NamedTuple):
    """Where a storage that the graph didn't make comes from: kind is "input" or "const"."""

    kind: str
    name: str
    position: int


class Storage:
    """Memory that views share. `base` is the metadata of the tensor that covers it all."""

    __slots__ = ("base", "origin", "record", "version")

    def __init__(self, record: Record, base: FakeTensor, origin: Origin | None = None) -> None:
        self.record, self.base, self.origin = record, base, origin
        self.version = 0


class Value:
    """A traced tensor: `fake` is what the user's code sees, `record` computes it as of `version`."""

    __slots__ = ("chain", "fake", "record", "storage", "version")

    def __init__(self, fake: FakeTensor, storage: Storage, chain: tuple[ViewStep, ...], record: Record) -> None:
        self.fake, self.storage, self.chain, self.record = fake, storage, chain, record
        self.version = storage.version


def read(value: Value, emit: Emit) -> Record:
    """Return the record of the current value, rebuilding views of a storage that was written since."""
    storage = value.storage
    if value.version != storage.version:
        record = storage.record
        for step in value.chain:
            record = replay(step, record, storage, emit)
        value.record, value.version = record, storage.version
    return value.record


def replay(step: ViewStep, record: Record, storage: Storage, emit: Emit) -> Record:
    """Take one step of a view again, on memory that may be laid out otherwise than when it was first taken."""
    if step.op is aten.as_strided.default:
        size, stride, offset = step.args
        base = storage.base
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if not is_dense(base.shape, base.stride()) or offset < 0 or last >= max(base.numel(), 1):
            raise LoweringError("as_strided of written memory reaches what the tensor that was written does not show")
        return emit(step.op, storage.record, size, stride, offset + storage.record.val.storage_offset())
    if step.op in BIT_OPS:  # what is expanded stays so, as it does in eager mode, where no numbers are computed yet
        shape, strides = record.val.shape, record.val.stride()
        for dim in [d for d, stride in enumerate(strides) if stride == 0]:
            record = emit(aten.slice.Tensor, record, dim, 0, 1)
        record = emit(BIT_OPS[step.op], record)
        return emit(aten.expand.default, record, shape) if 0 in strides else record
    if step.op is aten.view.default and not _viewable(record.val, step.args[0]):
        record = emit(aten.clone.default, record, memory_format=torch.contiguous_format)
    return emit(step.op, record, *step.args, **dict(step.kwargs))


def _viewable(val: FakeTensor, shape: Any) -> bool:
    try:
        return val.is_contiguous() or view(val, list(shape)) is not None
    except NoRule:
        return False


def write(value: Value, new: Record, emit: Emit) -> None:
    """Make `new` the content of `value`'s memory."""
    storage = value.storage
    if value.chain and overlaps(value.fake):
        raise LoweringError("a write to a view that shows one element in several places")
    new = _conform(new, value.fake, emit)
    content = new
    if value.chain:
        content = _write_through(value, new, emit)
    storage.record = restrided(content, storage.base, emit)
    storage.version += 1
    if not value.chain:
        value.record, value.version = storage.record, storage.version
    elif expressions(new.val.stride()) == expressions(value.fake.stride()):
        value.record, value.version = new, storage.version


def overlaps(fake: FakeTensor) -> bool:
    """Whether several elements may be in one place: a stride stays within the reach of the smaller ones."""
    reach = 0
    for d in by_stride(tuple(fake.shape), fake.stride()):
        stride, n = fake.stride()[d], fake.shape[d]
        if stride <= reach and n > 1:
            return fake.numel() > 0
        reach += (n - 1) * stride
    return False


def _conform(record: Record, like: FakeTensor, emit: Emit) -> Record:
    if record.val.dtype != like.dtype:
        record = emit(aten._to_copy.default, record, dtype=like.dtype)
    if record.val.fake_device != like.fake_device:
        record = emit(aten._to_copy.default, record, device=like.fake_device)
    if expressions(record.val.shape) != expressions(like.shape):
        record = emit(aten.expand.default, record, list(like.shape))
    return record


def restrided(record: Record, like: FakeTensor, emit: Emit) -> Record:
    """Copy `record` into the strides of `like`, packed in their order if they leave gaps, unless it has them."""
    present = expressions(record.val.stride())
    if present == expressions(like.stride()):
        return record  # before a symbolic size is asked whether it is 1
    strides = dense_strides(like)
    if present == expressions(strides):
        return record
    order = by_stride(tuple(like.shape), strides)[::-1]
    if order == sorted(order):
        return emit(aten.clone.default, record, memory_format=torch.contiguous_format)
    moved = emit(aten.permute.default, record, order)
    packed = emit(aten.clone.default, moved, memory_format=torch.contiguous_format)
    return emit(aten.permute.default, packed, [order.index(d) for d in range(like.dim())])


# ---------------------------------------------------------------- writing through views


def _write_through(value: Value, new: Record, emit: Emit) -> Record:
    storage, chain = value.storage, value.chain
    if any(step.op not in _INVERSES for step in chain):
        return _scatter_strided(storage, value.fake, new, emit)
    befores = [storage.record]
    for step in chain[:-1]:
        befores.append(replay(step, befores[-1], storage, emit))
    for step, before in zip(reversed(chain), reversed(befores), strict=True):
        new = _INVERSES[step.op](emit, before, new, step)
    return new


def _scatter_strided(storage: Storage, like: FakeTensor, new: Record, emit: Emit) -> Record:
    base = storage.base
    if not is_dense(base.shape, base.stride()) or base.dtype != like.dtype:
        raise LoweringError("a write through this view can't be made functional")
    new = switched(new, bits_of(like), emit)
    offset = like.storage_offset() - base.storage_offset() + storage.record.val.storage_offset()
    return emit(aten.as_strided_scatter.default, storage.record, new, list(like.shape), list(like.stride()), offset)


def _same_elements(emit: Emit, before: Record, new: Record, step: ViewStep) -> Record:
    shape = list(before.val.shape)
    if not _viewable(new.val, shape):
        new = emit(aten.clone.default, new, memory_format=torch.contiguous_format)
    return emit(aten.view.default, new, shape)


def _permute(emit: Emit, before: Record, new: Record, step: ViewStep) -> Record:
    rank = before.val.dim()
    order = [d % rank for d in step.args[0]]
    return emit(aten.permute.default, new, [order.index(d) for d in range(rank)])


def _scatter(op: OpOverload) -> Callable[[Emit, Record, Record, ViewStep], Record]:
    return lambda emit, before, new, step: emit(op, before, new, *step.args, **dict(step.kwargs))


_INVERSES: dict[OpOverload, Callable[[Emit, Record, Record, ViewStep], Record]] = {
    aten.view.default: _same_elements, aten.unsqueeze.default: _same_elements, aten.squeeze.default: _same_elements,
    aten.squeeze.dim: _same_elements, aten.squeeze.dims: _same_elements, aten.permute.default: _permute,
    **dict.fromkeys((aten.transpose.int, aten.t.default), lambda emit, _, new, step: emit(step.op, new, *step.args)),
    aten.select.int: _scatter(aten.select_scatter.default),
    aten.slice.Tensor: _scatter(aten.slice_scatter.default),
    aten.diagonal.default: _scatter(aten.diagonal_scatter.default),
    aten.view_as_real.default: lambda emit, before, new, step: emit(
        aten.view_as_complex.default, emit(aten.clone.default, new, memory_format=torch.contiguous_format)),
    **dict.fromkeys(BIT_OPS, lambda emit, before, new, step: emit(BIT_OPS[step.op], new)),
    aten.view.dtype: lambda emit, before, new, step: emit(aten.view.dtype, new, before.val.dtype),
    aten.view_as_complex.default: lambda emit, before, new, step: emit(aten.view_as_real.default, new),
}  # fmt: skip
"""View op -> (emit, tensor before the view, new content of the view, step) -> new content before the view."""
