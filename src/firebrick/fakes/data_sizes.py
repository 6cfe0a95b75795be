"""Results whose sizes only the data of tensors tell: each is a new symbol, bound by a call once it has run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from firebrick.ir.index.sizes import Sizes, SizesDisagree, size_of

aten = torch.ops.aten

SHIFT = 1 << 61
"""What is added to an integer, which may be negative, where it is a size."""
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
MASKS = (torch.bool, torch.uint8)

_ONE = torch.zeros(1)


def as_size(tensor: torch.Tensor) -> torch.Tensor:
    """The number in a tensor, without its fraction, as the size of one: graphs are functions of tensors; raises
    SizesDisagree: it is too large for one, or none."""
    try:
        number = int(tensor.item())
    except (OverflowError, ValueError) as error:
        raise SizesDisagree(str(error)) from error
    if not -SHIFT <= number <= SHIFT:
        raise SizesDisagree(f"{number} is too large to be a size")
    return _ONE.expand(number + SHIFT)


def as_true(tensor: torch.Tensor) -> torch.Tensor:
    """The same of a truth that is expected; raises SizesDisagree: it is false."""
    if not tensor:
        raise SizesDisagree("what was expected of numbers in tensors does not hold")
    return as_size(tensor)


def is_integer(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds one integer, which may be a size."""
    return tensor.dtype in _INTEGERS and all(type(n) is int and n == 1 for n in tensor.shape)


def fake_size(sizes: Sizes, tensor: torch.Tensor) -> torch.Tensor:
    """`as_size` and `as_true` of a fake tensor."""
    lo, hi = 0, 1
    if tensor.dtype != torch.bool:
        bounds = torch.iinfo(torch.int64 if tensor.dtype.is_floating_point else tensor.dtype)
        lo, hi = max(bounds.min, -SHIFT), min(bounds.max, SHIFT)
    number = sizes.from_data(lo, hi)
    return torch.empty_strided((sizes.size(number + SHIFT),), (0,))


def _empty(like: torch.Tensor, shape: Sequence[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def _nonzero(sizes: Sizes, x: torch.Tensor) -> torch.Tensor:
    count = sizes.size(sizes.from_data())
    return torch.empty_strided((count, x.dim()), (1, count), dtype=torch.int64, device=x.device)


def _unique(
    sizes: Sizes, x: torch.Tensor, _sorted: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[torch.Tensor, ...]:
    count = sizes.size(sizes.from_data())
    ints = torch.int64
    return (
        _empty(x, (count,)),
        _empty(x, x.shape if inverse or counts else (0,), ints),
        _empty(x, (count if counts else 0,), ints),
    )


def _unique_dim(
    sizes: Sizes, x: torch.Tensor, dim: int, _sorted: bool = True, inverse: bool = False, counts: bool = False
) -> tuple[torch.Tensor, ...]:
    d, count, ints = dim % x.dim(), sizes.size(sizes.from_data()), torch.int64
    rows = _empty(x, (count, *x.shape[:d], *x.shape[d + 1 :])).movedim(0, d)
    return rows, _empty(x, (x.shape[d],), ints), _empty(x, (count,), ints)


def _unique_consecutive(
    sizes: Sizes, x: torch.Tensor, inverse: bool = False, counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, ...]:
    if dim is not None:
        return _unique_dim(sizes, x, dim)
    results = _unique(sizes, x, True, inverse, counts)
    return results[0], results[1] if inverse else _empty(x, (0,), torch.int64), results[2]


def _repeat_interleave(sizes: Sizes, repeats: torch.Tensor, output_size: Any = None) -> torch.Tensor:
    return _empty(repeats, (sizes.size(sizes.from_data()) if output_size is None else output_size,))


def _bincount(sizes: Sizes, x: torch.Tensor, weights: torch.Tensor | None = None, minlength: Any = 0) -> torch.Tensor:
    dtype = torch.int64 if weights is None else weights.dtype if weights.dtype == torch.float32 else torch.float64
    is_number = isinstance(minlength, int)
    count = sizes.from_data(minlength if is_number else 0)
    if not is_number:
        sizes.ask("<=", size_of(minlength), count, "expected")
    return _empty(x, (sizes.size(count),), dtype)


def _index(sizes: Sizes, x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    """Masks name places; those of one mask are as many in each of its dimensions."""
    places: list[Any] = []
    for index in indices:
        if index is None or index.dtype not in MASKS:
            places.append(index)
        else:
            count = sizes.size(sizes.from_data())
            places += [_empty(index, (count,), torch.int64) for _ in range(index.dim())]
    return aten.index.Tensor(x, places)


DATA_SIZED: Mapping[str, Callable[..., Any]] = {
    "aten::nonzero": _nonzero,
    "aten::masked_select": lambda sizes, x, mask: _empty(x, (sizes.size(sizes.from_data()),)),
    "aten::_unique2": _unique,
    "aten::unique_dim": _unique_dim,
    "aten::unique_consecutive": _unique_consecutive,
    "aten::repeat_interleave.Tensor": _repeat_interleave,
    "aten::bincount": _bincount,
    "aten::index.Tensor": _index,
    "torchvision::nms": lambda sizes, boxes, *_: _empty(boxes, (sizes.size(sizes.from_data()),), torch.int64),
}
"""Operator -> its results; their sizes are new symbols."""


def is_data_sized(func: Any, args: Sequence[Any]) -> bool:
    """Whether the sizes of what an operator gives are decided by data."""
    if not isinstance(func, torch._ops.OpOverload) or func.name() not in DATA_SIZED:
        return False
    return func is not aten.index.Tensor or any(t is not None and t.dtype in MASKS for t in args[1])
