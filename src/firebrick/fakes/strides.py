"""How tensors lie: the strides that PyTorch's own kernels give what they make."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from typing import Any

import torch

from firebrick.ir.index.sizes import below, one_or_more

Shape = tuple[int, ...]


def contiguous(shape: Sequence[int]) -> Shape:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (max(size, 1) if type(size) is int else one_or_more(size))
    return tuple(reversed(strides))


def by_stride(shape: Shape, strides: Shape) -> list[int]:
    """Return the dimensions, those of the least strides first, and of equal ones those of the least sizes."""
    dims = range(len(shape))
    if all(type(n) is int for n in (*shape, *strides)):
        return sorted(dims, key=lambda d: (strides[d], shape[d]))

    def compare(a: int, b: int) -> int:
        for sides in (strides, shape):
            if below(sides[a], sides[b]):
                return -1
            if below(sides[b], sides[a]):
                return 1
        return 0

    return sorted(dims, key=cmp_to_key(compare))


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Return whether elements lie without gaps and none twice."""
    if any(type(step) is int and not step and size != 1 for size, step in zip(shape, strides, strict=True)):
        return False
    step = 1
    for d in by_stride(shape, strides):
        stride, size = strides[d], shape[d]
        if size == 1:
            continue
        if stride != step:
            return False
        step *= size
    return True


def dense_strides(tensor: torch.Tensor) -> Shape:
    """Return the strides that `empty_like` gives: the tensor's own if dense, else packed in the same order."""
    shape, strides = tuple(tensor.shape), tensor.stride()
    return strides if is_dense(shape, strides) else packed(shape, [strides])


def broadcast_strides(own: Shape, strides: Shape, shape: Shape) -> Shape:
    """Return the strides of a tensor of shape `own` broadcast to `shape`."""
    lead = len(shape) - len(own)
    return (0,) * lead + tuple(0 if own[i] == 1 and shape[lead + i] != 1 else strides[i] for i in range(len(own)))


def packed(shape: Shape, operands: list[Shape]) -> Shape:
    """Order dimensions as elementwise kernels do: by the operands' strides; the first operand that tells decides."""
    rank = len(shape)
    order = list(range(rank - 1, -1, -1))  # fastest first

    def compare(a: int, b: int) -> int:
        for strides in operands:
            x, y = strides[a], strides[b]
            if x == 0 or y == 0:
                continue
            if x != y:
                return -1 if below(x, y) else 1
            if below(shape[b], shape[a]):
                return 1
        return 0

    for i in range(1, rank):
        place = i
        for other in range(i - 1, -1, -1):
            comparison = compare(order[other], order[place])
            if comparison > 0:
                order[other], order[place] = order[place], order[other]
                place = other
            elif comparison < 0:
                break
    strides, step = [0] * rank, 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def is_channels_last(x: Any) -> bool:
    """Whether kernels take images for channels last: strides grow from channels over columns and rows to the batch.

    Where both layouts fit, strides of dimensions of one element decide.
    """
    rank = x.dim()
    if rank not in (4, 5) or 0 in x.shape:
        return False
    least = 0
    for d in (1, *range(rank - 1, 1, -1), 0):
        if x.stride(d) < max(least, 1 if d == 1 else 0) or (d == 0 and least == x.stride(1)):
            return False
        least = x.stride(d) * x.shape[d]
    return True


def is_normalized_channels_last(x: Any) -> bool:
    """Whether batch norm on a CPU gives channels last: also where strides of one element leave it in doubt."""
    last = torch.channels_last_3d if x.dim() == 5 else torch.channels_last
    return is_channels_last(x) or (x.dim() in (4, 5) and not x.is_contiguous() and x.is_contiguous(memory_format=last))


def channels_last(shape: Shape) -> Shape:
    """Return the strides of channels-last images."""
    batch, channels, *sizes = shape
    strides = contiguous((batch, *sizes, channels))
    return strides[0], 1, *strides[1:-1]
