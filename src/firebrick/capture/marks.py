"""Marks that users put into their code for capture to see: breaks, functions to leave alone, sizes that vary."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from firebrick.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

CONSTANT = "_firebrick_constant"
"""Attribute that is True on functions whose result for constant arguments never changes."""

IN_GRAPH = "_firebrick_in_graph"
"""Attribute that is True on functions whose calls go into the graph as they are."""

NONSTRICT = "nonstrict_trace"
"""What the rule of functions that torch keeps a list of is found by; no function has such an attribute."""

ORIGINAL = "_firebrick_original"
"""Attribute of a compiled function: what it was made of."""

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


def assume_constant_result(fn: F) -> F:
    """Say that `fn` gives the same result whenever its arguments are the same: captured code calls it once.

    A decorator for functions of constants and of objects that captured code does not change.
    """
    return _marked(fn, CONSTANT)


def allow_in_graph(fn: F) -> F:
    """Let calls of `fn` go into graphs as they are, without a look inside. A decorator.

    The function gets tensors, numbers and containers of them, and returns such; it must have no other effect.
    """
    return _marked(fn, IN_GRAPH)


def _marked(fn: F, mark: str) -> F:
    if not isinstance(fn, types.FunctionType):
        raise ConfigError(f"a Python function is needed, not an object of {type(fn).__name__}")
    setattr(fn, mark, True)
    return fn


def own_mark(function: Any, mark: str, default: Any = None) -> Any:
    """The value of a function's mark; the default where it has none, or `functools.wraps` copied another's."""
    value = getattr(function, mark, default)
    wrapped = getattr(function, "__wrapped__", None)
    return default if wrapped is not None and getattr(wrapped, mark, default) is value else value


def is_of_torch(function: Any) -> bool:
    """Whether a function is one of PyTorch's own."""
    return str(getattr(function, "__module__", None)).partition(".")[0] == "torch"


def disabled_by_torch(function: Any) -> tuple[Any, bool] | None:
    """What `torch.compiler.disable` wrapped, and whether its callees are meant too; None for other functions."""
    original = own_mark(function, "_torchdynamo_orig_callable") if own_mark(function, "_torchdynamo_disable") else None
    if original is None or is_of_torch(original):
        return None
    return original, getattr(function, "_torchdynamo_disable_recursive", True)


def mark_dynamic(
    tensor: torch.Tensor, dim: int | Iterable[int], min: int | None = None, max: int | None = None
) -> None:
    """Say that the size of `tensor` in `dim` varies between calls, within these bounds.

    One compile then serves all of them, unless something needs the number.

    Raises:
        ConfigError: the tensor has no such dimension, its size is out of bounds, or no size is within them.
    """
    lo, hi = min or 0, (1 << 63) - 1 if max is None else max
    if not 0 <= lo <= hi:
        raise ConfigError(f"no size is from {min} to {max}", fix="give bounds with 0 <= min <= max, or leave them out")
    marks: dict[int, tuple[int | None, int | None]] = dict(getattr(tensor, DYNAMIC, {}))
    for d in _dims(tensor, dim):
        if not lo <= (size := tensor.shape[d]) <= hi:
            raise ConfigError(
                f"dimension {d} has size {size}, outside of {min} to {max}", fix="give bounds for all calls"
            )
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
