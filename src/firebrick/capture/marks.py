"""Marks that users put into their code for capture to see: breaks, functions to leave alone, sizes that vary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firebrick.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

__all__ = ["DISABLED", "DYNAMIC", "STATIC", "graph_break", "is_compiling", "mark_dynamic", "mark_static"]

DISABLED = "_firebrick_disabled"
"""Attribute that is True on functions that capture neither enters nor inlines."""

DYNAMIC = "_firebrick_dynamic"
"""Attribute of a tensor: dimension -> (smallest, largest) size or None, as `mark_dynamic` was told."""

STATIC = "_firebrick_static"
"""Attribute of a tensor: dimensions whose sizes are always compiled as constants."""


def graph_break() -> None:
    """End the graph here; plain Python goes on until the next tensor operation."""


def is_compiling() -> bool:
    """Return True inside captured code, False elsewhere."""
    return False


def mark_dynamic(
    tensor: torch.Tensor, dim: int | Iterable[int], min: int | None = None, max: int | None = None
) -> None:
    """Say that the size of `tensor` in `dim` varies between calls, within these bounds.

    Raises:
        ConfigError: the tensor has no such dimension or its size is out of bounds.
    """
    marks: dict[int, tuple[int | None, int | None]] = dict(getattr(tensor, DYNAMIC, {}))
    for d in _dims(tensor, dim):
        size = tensor.shape[d]
        if (min is not None and size < min) or (max is not None and size > max):
            raise ConfigError(f"dimension {d} has size {size}, outside of {min} to {max}")
        marks[d] = (min, max)
    setattr(tensor, DYNAMIC, marks)


def mark_static(tensor: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Say that the size of `tensor` in `dim` (None: in all) never varies, or that a compile for each size is wanted.

    Raises:
        ConfigError: the tensor has no such dimension.
    """
    dims = range(tensor.dim()) if dim is None else dim
    setattr(tensor, STATIC, {*getattr(tensor, STATIC, ()), *_dims(tensor, dims)})


def _dims(tensor: Any, dim: int | Iterable[int]) -> list[int]:
    rank = tensor.dim()
    dims = [dim] if isinstance(dim, int) else list(dim)
    for d in dims:
        if not -rank <= d < rank:
            raise ConfigError(f"a tensor of {rank} dimensions has no dimension {d}")
    return [d % rank for d in dims]
