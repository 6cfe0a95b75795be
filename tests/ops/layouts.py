"""Cases of the operator database whose arguments lie in memory in unusual ways, alone and beside a layer and a residual.

Every tensor argument of a sample is laid out anew: permuted, expanded, channels last, behind an offset, with the negative
bit, with the conjugate bit. The operator runs alone, behind a linear layer, before a residual (`x + op(x)`), and between a
linear layer and a residual (`x + linear(op(x))`), in one graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tests.ops.cases import DTYPES, Case, determined
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["CONTEXTS", "LAYOUTS", "LAYOUT_DTYPES", "layout_cases"]

LAYOUT_DTYPES = {**DTYPES, "complex64": torch.complex64}
SAMPLES = 4
"""Samples of an operator and dtype that are laid out anew, if no number is asked for."""


# ---------------------------------------------------------------- layouts: a tensor like the argument, or None


def _permuted(t: torch.Tensor) -> torch.Tensor | None:
    """The same numbers, the first dimension innermost."""
    if t.dim() < 2 or t.numel() < 2:
        return None
    return t.movedim(0, -1).contiguous().movedim(-1, 0)


def _expanded(t: torch.Tensor) -> torch.Tensor | None:
    """The first row for each, held once."""
    dim = next((d for d, size in enumerate(t.shape) if size > 1), None)
    return None if dim is None else t.narrow(dim, 0, 1).clone().expand(t.shape)


def _channels_last(t: torch.Tensor) -> torch.Tensor | None:
    """The same numbers, the second dimension innermost."""
    if t.dim() < 3 or t.numel() < 2:
        return None
    return t.movedim(1, -1).contiguous().movedim(-1, 1)


def _offset(t: torch.Tensor) -> torch.Tensor | None:
    """The same numbers and strides, three elements into the memory: no vector is aligned."""
    if t.numel() == 0:
        return None
    return t.new_zeros(t.numel() + 3)[3:].view(t.shape).copy_(t)


def _negated(t: torch.Tensor) -> torch.Tensor | None:
    """The same numbers, held negated."""
    return None if t.dtype == torch.bool else torch._neg_view(-t.resolve_neg())


def _conjugated(t: torch.Tensor) -> torch.Tensor | None:
    """The same numbers, held conjugated; real ones as the imaginary part of a conjugate, a negative view with gaps."""
    if t.is_complex():
        return t.resolve_conj().conj().resolve_conj().conj()
    if t.dtype not in (torch.float32, torch.float64):
        return None
    return torch.complex(torch.zeros_like(t), -t).conj().imag


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "permuted": _permuted, "expanded": _expanded, "channels last": _channels_last, "offset": _offset, "negated": _negated, "conjugated": _conjugated,
}  # fmt: skip


# ---------------------------------------------------------------- what an operator meets in its graph


def _matrix(size: int) -> torch.Tensor:
    """Moves elements along by one place: whatever an operator is defined for it still sees."""
    return torch.eye(size, dtype=torch.float64).roll(1, 0)


_MATRICES: dict[tuple[int, torch.dtype], torch.Tensor] = {}


def linear(x: torch.Tensor) -> torch.Tensor:
    """A linear layer on the last dimension."""
    key = x.shape[-1], x.dtype
    if key not in _MATRICES:
        _MATRICES[key] = _matrix(key[0]).to(key[1])
    return torch.nn.functional.linear(x, _MATRICES[key])


def _has_rows(t: Any) -> bool:
    return (
        isinstance(t, torch.Tensor)
        and t.layout == torch.strided
        and (t.is_floating_point() or t.is_complex())
        and t.dim() > 0
    )


class _Refused(RuntimeError):
    """A sample that a context has no place for."""


def _first(args: Any, kwargs: Any) -> torch.Tensor:
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Tensor):
            if not _has_rows(leaf):
                break
            return leaf
    raise _Refused("no tensor of numbers comes first")


def behind_linear(function: Callable[..., Any]) -> Callable[..., Any]:
    """f -> f(linear(x), ...)"""

    def run(*args: Any, **kwargs: Any) -> Any:
        first = _first(args, kwargs)
        args, kwargs = pytree.tree_map(lambda leaf: linear(leaf) if leaf is first else leaf, (args, kwargs))
        return function(*args, **kwargs)

    return run


def before_residual(function: Callable[..., Any]) -> Callable[..., Any]:
    """f -> x + f(x, ...)"""

    def run(*args: Any, **kwargs: Any) -> Any:
        return _add(_first(args, kwargs), function(*args, **kwargs))

    return run


def between(function: Callable[..., Any]) -> Callable[..., Any]:
    """f -> x + linear(f(x, ...))"""

    def run(*args: Any, **kwargs: Any) -> Any:
        return _add(_first(args, kwargs), function(*args, **kwargs), linear)

    return run


def _add(x: torch.Tensor, result: Any, of: Callable[[torch.Tensor], torch.Tensor] = lambda y: y) -> torch.Tensor:
    result = result[0] if isinstance(result, (tuple, list)) and result else result
    if not _has_rows(result) or (result.shape, result.dtype) != (x.shape, x.dtype):
        raise _Refused("the result has another shape")
    return x + of(result)


CONTEXTS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "alone": lambda function: function, "behind a linear": behind_linear, "before a residual": before_residual,
    "linear and residual": between,
}  # fmt: skip


def layout_cases(op: Any, dtype: torch.dtype, first: int = 0, end: int | None = None) -> Iterator[Case]:
    """Cases of an operator for one dtype: samples from `first` on and before `end`, in every layout and context."""
    if dtype not in op.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    for k, sample in enumerate(op.sample_inputs("cpu", dtype)):
        if k == end:
            return
        if k < first:
            continue
        leaves, spec = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        for layout, make in LAYOUTS.items():
            laid_out = [_laid_out(leaf, make) for leaf in leaves]
            if all(a is b for a, b in zip(leaves, laid_out, strict=True)):
                continue
            for context, wrap in CONTEXTS.items():
                if context == "alone" or (dtype.is_floating_point or dtype.is_complex):
                    yield Case(f"{layout}, {context}: {k}", wrap(determined(op)), tuple(laid_out), spec)


def _laid_out(leaf: Any, make: Callable[[torch.Tensor], torch.Tensor | None]) -> Any:
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided or leaf.is_quantized:
        return leaf
    made = make(leaf.detach())
    return leaf if made is None else made
