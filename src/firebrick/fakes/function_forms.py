"""Functions of torch by other calls: those whose own code in C++ asks for sizes as numbers, or takes another kernel for
fake tensors than for plain ones. What they give has the same numbers and lies the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp.decompositions import upsample_compute_output_size
from torch._ops import OpOverload

from firebrick.ir.index.sizes import has_symbols


def _max_pool1d(
    function: Callable[..., Any],
    input: Tensor,
    kernel_size: Any,
    stride: Any = None,
    *args: Any,
    return_indices: bool = False,
    **named: Any,
) -> Any:
    """Where no gradient is asked for, eager has a kernel for CPUs that makes contiguous results of all layouts, and
    takes no integers."""
    recorded = input.requires_grad and torch.is_grad_enabled()
    if recorded or return_indices or len(args) > 3 or input.device.type != "cpu":
        return function(input, kernel_size, stride, *args, return_indices=return_indices, **named)
    if not input.is_floating_point():
        raise NotImplementedError(f'"max_pool1d_impl" not implemented for {input.dtype}')
    steps = () if stride is None else stride
    pooled = torch.max_pool1d_with_indices(input, kernel_size, steps, *args, **named)[0]
    *_, rows, columns = pooled.shape  # where there is one column, a contiguous tensor may lie in two ways
    dense = not has_symbols(pooled) and pooled.stride() == (rows * columns, columns, 1)[-pooled.dim() :]
    return pooled if dense else pooled.clone(memory_format=torch.contiguous_format)


def _fft(
    function: Callable[..., Any],
    dims: Any,
    halves: bool,
    input: Tensor,
    s: Any = None,
    dim: Any = (),
    norm: str | None = None,
    *,
    n: Any = None,
    **out: Any,
) -> Any:
    """Dimensions that are cut or filled up to lengths, whichever it is."""
    s = n if s is None else s
    dim = dims if isinstance(dim, tuple) and not dim else dim
    lengths = [] if s is None else list(s) if isinstance(s, (tuple, list)) else [s]
    places = range(-len(lengths), 0) if dim is None else list(dim) if isinstance(dim, (tuple, list)) else [dim]
    count = input.dim()
    if has_symbols(input) and len(lengths) == len(places) and all(-count <= d < count for d in places):
        sides: list[Any] = [0] * (2 * count)
        for k, (length, d) in enumerate(zip(lengths, places, strict=True), 1):
            if length > 0:
                length = length // 2 + 1 if halves and k == len(lengths) else length
                sides[2 * (count - 1 - d % count) + 1] = length - input.shape[d]
        input = F.pad(input, sides) if any(type(side) is not int or side for side in sides) else input
    return function(input, s, dim, norm, **out)


def _kron(input: Tensor, other: Tensor, **out: Any) -> Any:
    if out or not (has_symbols(input) or has_symbols(other)):
        return torch.kron(input, other, **out)
    count = max(input.dim(), other.dim())
    a, b = ((*[1] * (count - x.dim()), *x.shape) for x in (input, other))
    rows = input.view([n for size in a for n in (size, 1)]) * other.view([n for size in b for n in (1, size)])
    return rows.view([m * n for m, n in zip(a, b, strict=True)])


def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None, **out: Any) -> Any:
    count, symbols = input.dim(), has_symbols(input) or has_symbols(indices)
    if out or not symbols or (dim is not None and not (count == indices.dim() and -count <= dim < count)):
        return torch.take_along_dim(input, indices, dim, **out)
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    first, second = list(input.shape), list(indices.shape)
    first[dim] = second[dim] = 1
    shape = list(torch.broadcast_shapes(first, second))
    shape[dim] = input.shape[dim]
    input = input.expand(shape)
    shape[dim] = indices.shape[dim]
    return input.gather(dim, indices.expand(shape))


def _cov(input: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """PyTorch's own compares values of tensors, too."""
    rows = input if input.dim() == 2 else input.reshape(1, -1)
    count = rows.shape[1]
    weighted = fweights is not None or aweights is not None
    if weighted or input.dim() > 2 or input.dtype is torch.bool or count <= correction:
        return torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    rows = rows - (rows.sum(1) / count).unsqueeze(1)
    return (torch.mm(rows, rows.t().conj()) / (count - correction)).squeeze()


def _corrcoef(input: Tensor) -> Any:
    if input.dim() > 2 or input.is_complex():
        return torch.corrcoef(input)
    c = _cov(input)
    if c.dim() == 0:
        return c / c
    deviation = c.diagonal().sqrt()
    return (c / deviation.view(-1, 1) / deviation.view(1, -1)).clip(-1, 1)


def _interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    **other: Any,
) -> Any:
    """PyTorch's own for symbols adds a part of a difference, which is NaN between infinities."""
    dims = input.dim() - 2
    differentiates = input.requires_grad and torch.is_grad_enabled()  # kernels of gradients take no symbols
    if (
        differentiates
        or other
        or (mode, dims) not in _LINEAR
        or (size is None) == (scale_factor is None)
        or not has_symbols(input)
    ):
        return F.interpolate(input, size, scale_factor, mode, align_corners, **other)
    size, scales = (n if n is None or isinstance(n, (tuple, list)) else [n] * dims for n in (size, scale_factor))
    if len(scales or size) != dims:
        return F.interpolate(input, size, scale_factor, mode, align_corners)
    shape = upsample_compute_output_size(input.shape, size, scales)
    return _LINEAR[mode, dims](input, shape, bool(align_corners), *(scales or [None] * dims))


_LINEAR = {
    ("linear", 1): torch.ops.aten.upsample_linear1d.default,
    ("bilinear", 2): torch.ops.aten.upsample_bilinear2d.default,
    ("trilinear", 3): torch.ops.aten.upsample_trilinear3d.default,
}


def _glu(function: Callable[..., Any], input: Tensor, dim: int = -1) -> Any:
    count = input.dim()
    if not has_symbols(input) or not -count <= dim < count or input.shape[dim] % 2 or not input.is_floating_point():
        return function(input, dim)
    half = input.shape[dim] // 2
    wide = input.float() if input.dtype.itemsize < 4 else input
    return (wide.narrow(dim, 0, half) * wide.narrow(dim, half, half).sigmoid()).to(input.dtype)


def kernel_of_calls(func: OpOverload) -> Callable[..., Any] | None:
    """A kernel in C++ that makes calls of other ops, for all devices."""
    has, key = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name()), torch._C.DispatchKey
    keys = (key.CompositeExplicitAutograd, key.CompositeExplicitAutogradNonFunctional)
    registered = next((one for one in keys if has(one.name)), None)
    return None if registered is None or has("Meta") else partial(func._op_dk, registered)


_ONE, _TWO = -1, (-2, -1)
_REAL = ("irfft", "hfft")
FORMS: Mapping[Any, Callable[..., Any]] = {
    **{f: partial(_max_pool1d, f) for f in (F.max_pool1d, torch.max_pool1d)},
    **{
        (f := getattr(torch.fft, name + end)): partial(_fft, f, dims, name in _REAL)
        for name in ("fft", "ifft", "rfft", "ihfft", *_REAL)
        for end, dims in (("", _ONE), ("2", _TWO), ("n", None))
    },
    **{f: partial(_glu, f) for f in (F.glu, torch._C._nn.glu)},
    F.interpolate: _interpolate,
    torch.kron: _kron,
    torch.take_along_dim: _take_along_dim,
    torch.cov: _cov,
    torch.corrcoef: _corrcoef,
}
"""Function -> the same by other calls."""


def recorded(inputs: Iterable[torch.Tensor], *results: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results that want gradients as those of the inputs do."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in inputs):
        return tuple(r.requires_grad_().clone() if r.is_floating_point() else r for r in results)
    return results


def _recurrent(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`torch.lstm(x, (h, c), weights, biased, layers, dropout, train, bidirectional, batch_first)` and the like."""
    if len(args) != 9 or kwargs or not isinstance(args[2], (tuple, list)) or args[0].dim() != 3:
        return function(*args, **kwargs)
    x, state, weights, biased, layers, dropout, train, bidirectional, batch_first = args
    states = state if isinstance(state, (tuple, list)) else [state]
    directions = 1 + bidirectional
    batch, steps = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
    hidden = (layers * directions, batch, weights[1].shape[1])
    plain = not (dropout and train) and len(weights) == layers * directions * (4 if biased else 2)
    plain = plain and x.shape[2] == weights[0].shape[1] and all(t.dtype == x.dtype for t in (*states, *weights))
    if not any(map(has_symbols, (x, *states))) or not plain or any(tuple(h.shape) != hidden for h in states):
        return function(*args, **kwargs)
    out, *after = (x.new_empty(sizes) for sizes in ((steps, batch, directions * hidden[2]), *(hidden for _ in states)))
    out, *after = recorded((x, *states, *weights), out, *after)
    return (out.transpose(0, 1) if batch_first else out, *after)


_LAYERS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
SHAPES: Mapping[Any, Callable[..., Any]] = {
    **{function: partial(_recurrent, function) for function in _LAYERS},
    **FORMS,
}
"""Function -> the same for fake tensors, whatever their sizes are."""
