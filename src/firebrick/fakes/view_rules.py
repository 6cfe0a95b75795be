"""Views of tensors whose sizes are expressions: PyTorch's own kernels for them take numbers only.

Each rule gives sizes, strides and offset of what an op shows, or a list of them; `find_view` has the rule of an op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from firebrick.fakes.promotion import NoRule
from firebrick.fakes.strides import Shape, contiguous
from firebrick.ir.index.expr import as_expr, maximum
from firebrick.ir.index.sizes import expressions, now, size_of, sizes_in

aten = torch.ops.aten


class Seen(NamedTuple):
    """What a view shows of the memory of its base."""

    shape: Shape
    strides: Shape
    offset: Any


def _of(x: torch.Tensor) -> Seen:
    return Seen(tuple(x.shape), x.stride(), x.storage_offset())


def _whole_shape(sizes: Sequence[Any], count: Any) -> list[Any]:
    """The sizes with what -1 stands for."""
    unknown = [i for i, n in enumerate(sizes) if type(n) is int and n == -1]
    shape, rest = list(sizes), math.prod(n for i, n in enumerate(sizes) if i not in unknown[:1])
    if unknown:
        if len(unknown) > 1 or rest == 0 or count % rest != 0:
            raise NoRule
        shape[unknown[0]] = count // rest
    elif rest != count:
        raise NoRule
    return shape


def _runs(shape: Shape, strides: Shape) -> list[tuple[Any, Any]]:
    """Elements of the stretches of dimensions that lie together, the last first, and from one to the next of them."""
    runs: list[tuple[Any, Any]] = []
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1] = (runs[-1][0] * n, runs[-1][1])
        else:
            runs.append((n, stride))
    return runs


def _is_dense(shape: Sequence[Any], strides: Shape) -> bool:
    sizes, steps = ([as_expr(n) for n in expressions(row)] for row in (shape, strides))
    return steps == [math.prod(sizes[d + 1 :], start=as_expr(1)) for d in range(len(sizes))]


def view(x: torch.Tensor, size: Sequence[Any]) -> Seen:
    """What `x.view(size)` shows: the stretches of memory are divided anew."""
    old, strides, offset = _of(x)
    shape = _whole_shape(size, math.prod(old))
    if expressions(shape) == expressions(old) and _is_dense(shape, strides):
        return Seen(old, strides, offset)  # without a question: what data decide has no answer
    if any(type(n) is int and n == 0 for n in old):
        return Seen(tuple(shape), strides if tuple(shape) == old else contiguous(tuple(shape)), offset)
    steps: list[Any] = [1] * len(shape)
    d = len(shape) - 1
    for count, base in _runs(old, strides):
        run: Any = 1
        while d >= 0 and (run != count or shape[d] == 1):
            steps[d] = run * base
            run = run * shape[d]
            d -= 1
        if run != count:
            raise NoRule
    for left in range(d, -1, -1):
        if shape[left] != 1:
            raise NoRule
        steps[left] = steps[left + 1] * shape[left + 1] if left + 1 < len(shape) else 1
    return Seen(tuple(shape), tuple(steps), offset)


def _expand(x: torch.Tensor, size: Sequence[Any], *, implicit: bool = False) -> Seen:
    old, strides, offset = _of(x)
    lead = len(size) - len(old)
    shape, steps = list(size), [0] * len(size)
    for i, (n, stride) in enumerate(zip(old, strides, strict=True)):
        target = size[lead + i]
        if type(target) is int and target == -1:
            shape[lead + i], steps[lead + i] = n, stride
        elif type(n) is int and n == 1 and not (type(target) is int and target == 1):
            steps[lead + i] = 0
        elif n == target:
            steps[lead + i] = stride
        else:
            raise NoRule
    if any(type(n) is int and n < 0 for n in shape[:lead]):
        raise NoRule
    return Seen(tuple(shape), tuple(steps), offset)


def _permute(x: torch.Tensor, dims: Sequence[int]) -> Seen:
    shape, strides, offset = _of(x)
    if sorted(d % max(len(shape), 1) for d in dims) != list(range(len(shape))):
        raise NoRule
    return Seen(tuple(shape[d] for d in dims), tuple(strides[d] for d in dims), offset)


def _transpose(x: torch.Tensor, a: int, b: int) -> Seen:
    order = list(range(x.dim()))
    if order:
        order[a], order[b] = order[b], order[a]
    return _permute(x, order)


def _select(x: torch.Tensor, dim: int, index: Any) -> Seen:
    shape, strides, offset = _of(x)
    d = dim % len(shape)
    sizes = sizes_in((index, shape[d]))
    if sizes is not None and sizes.of_data(as_expr(size_of(index)) - size_of(shape[d])):
        sizes.ask("<=", 0, size_of(index), "expected")
        sizes.ask("<", size_of(index), size_of(shape[d]), "expected")
    if index < 0:
        index = index + shape[d]
    if not (index >= 0 and index < shape[d]):
        raise NoRule
    return Seen((*shape[:d], *shape[d + 1 :]), (*strides[:d], *strides[d + 1 :]), offset + index * strides[d])


def _bounded(index: Any, size: Any) -> Any:
    """An end of a slice as a place in the dimension."""
    if isinstance(index, int) and index >= 1 << 62:
        return size
    sizes = sizes_in((index, size))
    place = None if sizes is None else sizes.bounded(size_of(index), size_of(size))
    if sizes is not None and place is not None:
        return sizes.size(place)
    index = index + size if index < 0 else index
    if index < 0:
        return 0
    return size if index > size else index


def _slice(x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Seen:
    shape, strides, offset = _of(x)
    d = dim % len(shape)
    first = 0 if start is None else _bounded(start, shape[d])
    last = shape[d] if end is None else _bounded(end, shape[d])
    sizes = sizes_in((first, last))
    if sizes is not None and sizes.of_data(as_expr(size_of(last)) - size_of(first)):
        if last is not shape[d] and not sizes.holds("<=", size_of(first), size_of(last)):
            last = sizes.size(maximum(size_of(first), size_of(last)))
    elif last < first:
        last = first
    count = (last - first + step - 1) // step
    steps = (*strides[:d], strides[d] * step, *strides[d + 1 :])
    return Seen((*shape[:d], count, *shape[d + 1 :]), steps, offset + first * strides[d])


def _unsqueeze(x: torch.Tensor, dim: int) -> Seen:
    shape, strides, offset = _of(x)
    d = dim % (len(shape) + 1)
    stride = shape[d] * strides[d] if d < len(shape) else 1
    return Seen((*shape[:d], 1, *shape[d:]), (*strides[:d], stride, *strides[d:]), offset)


def _squeeze(x: torch.Tensor, dims: Any = None) -> Seen:
    shape, strides, offset = _of(x)
    squeezed = range(len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {d % max(len(shape), 1) for d in squeezed}
    remaining = [d for d in range(len(shape)) if d not in gone or shape[d] != 1]
    return Seen(tuple(shape[d] for d in remaining), tuple(strides[d] for d in remaining), offset)


def _parts(x: torch.Tensor, sizes: Sequence[Any], dim: int = 0) -> list[Seen]:
    shape, strides, offset = _of(x)
    d = dim % len(shape)
    total, symbols = sum(sizes), sizes_in((*sizes, shape[d]))
    if symbols is not None and symbols.of_data(as_expr(size_of(total)) - size_of(shape[d])):
        for sign, right, left in (("==", total, shape[d]), *(("<=", size, 0) for size in sizes)):
            symbols.ask(sign, size_of(left), size_of(right), "expected")
    elif total != shape[d]:
        raise NoRule
    parts = []
    for size in sizes:
        parts.append(Seen((*shape[:d], size, *shape[d + 1 :]), strides, offset))
        offset = offset + size * strides[d]
    return parts


def part_sizes(whole: Any, size: Any) -> list[Any]:
    """The sizes of the parts of a dimension that is split; how many there are is a number; raises NoRule: that tells
    nothing."""
    if sizes_in((whole, size)) is None:
        if size < 1:
            raise NoRule
        return [min(size, whole - k) for k in range(0, whole, size)] or [0]
    count = -(-now(whole) // max(now(size), 1))
    if size < 1 or not count or whole <= size * (count - 1) or whole > size * count:
        raise NoRule
    return [*[size] * (count - 1), whole - size * (count - 1)]


def _split(x: torch.Tensor, size: Any, dim: int = 0) -> list[Seen]:
    return _parts(x, part_sizes(x.shape[dim], size), dim)


def _unbind(x: torch.Tensor, dim: int = 0) -> list[Seen]:
    return [_select(x, dim, k) for k in range(int(x.shape[dim]))]


def _as_strided(x: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Seen:
    offset = x.storage_offset() if offset is None else offset
    if not any(type(n) is int and n == 0 for n in size):
        end = offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        torch._check(end * x.dtype.itemsize <= x.untyped_storage().nbytes())
    return Seen(tuple(size), tuple(stride), offset)


def _diagonal(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Seen:
    shape, strides, start = _of(x)
    a, b = dim1 % len(shape), dim2 % len(shape)
    rows, columns = (shape[a], shape[b] - offset) if offset >= 0 else (shape[a] + offset, shape[b])
    count = columns if columns < rows else rows
    if count < 0 or a == b:
        raise NoRule
    rest = [d for d in range(len(shape)) if d not in (a, b)]
    start = start + (offset * strides[b] if offset >= 0 else -offset * strides[a])
    return Seen((*[shape[d] for d in rest], count), (*[strides[d] for d in rest], strides[a] + strides[b]), start)


def _unfold(x: torch.Tensor, dim: int, size: int, step: int) -> Seen:
    shape, strides, offset = _of(x)
    d = dim % max(len(shape), 1)
    if not shape or size > shape[d] or step < 1:
        raise NoRule
    count = (shape[d] - size) // step + 1
    steps = (*strides[:d], strides[d] * step, *strides[d + 1 :], strides[d])
    return Seen((*shape[:d], count, *shape[d + 1 :], size), steps, offset)


VIEWS: dict[Any, Callable[..., Seen | list[Seen]]] = {
    aten.view.default: view,
    aten._reshape_alias.default: lambda x, size, stride: _as_strided(x, size, stride),
    aten.expand.default: _expand,
    aten.permute.default: _permute,
    aten.transpose.int: _transpose,
    aten.t.default: lambda x: _permute(x, range(x.dim())[::-1]),
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.unsqueeze.default: _unsqueeze,
    **dict.fromkeys((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), _squeeze),
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _parts,
    aten.unbind.int: _unbind,
    aten.as_strided.default: _as_strided,
    aten.diagonal.default: _diagonal,
    aten.unfold.default: _unfold,
    **dict.fromkeys((aten.detach.default, aten.alias.default), _of),
}
"""View op -> rule of its arguments; it raises `NoRule` where eager raises, or where it can't tell."""
