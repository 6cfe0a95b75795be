"""What the common ops return: shape, strides and dtype, computed from those of their arguments.

PyTorch's meta kernels of most of these ops are Python, and the first one that runs imports sympy and
`torch._dynamo`. These rules need nothing, and are several times as fast. A rule raises `NoRule` for
arguments that it doesn't know; the meta kernel then answers. A test compares all of them with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

from firebrick.fakes.promotion import NoRule, as_float, category_of, ops, promote
from firebrick.fakes.strides import (
    Shape,
    broadcast_strides,
    channels_last,
    contiguous,
    dense_strides,
    is_channels_last,
    is_dense,
    is_normalized_channels_last,
    packed,
)
from firebrick.fakes.view_rules import VIEWS, view
from firebrick.ir.index.expr import as_expr
from firebrick.ir.index.sizes import Sizes, has_symbols, size_of, sizes_in

__all__ = ["CONSTRUCTORS", "LAYOUTS", "RULES", "NoRule", "Spec", "convolution_shape", "find_rule"]

aten = torch.ops.aten


class Spec(NamedTuple):
    """A tensor to be: strides None means contiguous."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...] | None = None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that shapes broadcast to; what data decide is taken to fit."""
    first, sizes = shapes[0], sizes_in(n for s in shapes for n in s)
    if sizes is not None and sizes.data:
        _fit([list(map(size_of, s)) for s in shapes], sizes)
    if all(len(s) == len(first) and s == first for s in shapes):
        return first
    rank = max(len(s) for s in shapes)
    result = []
    for i in range(-rank, 0):
        size = 1
        for shape in shapes:
            if len(shape) >= -i and shape[i] != 1:
                if type(size) is int and size == 1:
                    size = shape[i]
                elif size != shape[i]:
                    raise NoRule
        result.append(size)
    return tuple(result)


def _fit(shapes: list[list[Any]], sizes: Sizes) -> None:
    for i in range(-max(map(len, shapes)), 0):
        wide = [as_expr(s[i]) for s in shapes if len(s) >= -i and s[i] != 1]
        for n in wide[1:]:
            if sizes.of_data(n - wide[0]):
                sizes.ask("==", n, wide[0], "expected")


def elementwise(
    tensors: Sequence[torch.Tensor], strides: Sequence[Shape] | None = None, numbers: bool = False
) -> tuple[Shape, Shape]:
    """Return shape and strides of an elementwise result; `strides`: those of the operands if not their own. `numbers`:
    there are operands that are numbers, which kernels take for tensors of another shape."""
    shapes = [tuple(t.shape) for t in tensors]
    shape = broadcast(shapes)
    whole = not numbers and all(len(s) == len(shape) and s == shape for s in shapes)
    if whole and all(t.is_contiguous() for t in tensors):
        return shape, contiguous(shape)
    if whole and len(shape) == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors):
        return shape, channels_last(shape)
    laid = [t.stride() for t in tensors] if strides is None else strides
    if whole and all(x == laid[0] for x in laid) and is_dense(shape, laid[0]):
        return shape, laid[0]
    if len(shape) < 2:
        return shape, contiguous(shape)
    return shape, packed(shape, [broadcast_strides(s, x, shape) for s, x in zip(shapes, laid, strict=True)])


def _converted(tensors: Sequence[torch.Tensor], common: torch.dtype) -> list[Shape]:
    """Strides of operands as the kernel sees them: CPUs' read a dense copy of one that has another dtype."""
    return [t.stride() if t.dtype is common or t.device.type != "cpu" else dense_strides(t) for t in tensors]


# ---------------------------------------------------------------- elementwise ops

_Rule = Any


def _pointwise(kind: str, count: int) -> _Rule:
    """Rule of an elementwise op whose first `count` arguments are operands."""

    def rule(*args: Any, **kwargs: Any) -> Spec:
        operands = [a for a in args[:count] if a is not None]
        tensors = [a for a in operands if isinstance(a, torch.Tensor)]
        dtype = promote(operands)
        if kind == "number" and dtype is torch.bool:
            raise NoRule  # PyTorch's code says what is wrong
        if kind == "float" or (kind == "div" and not kwargs.get("rounding_mode")):
            dtype = as_float(dtype)
        elif kind == "self":
            dtype = args[0].dtype
        elif kind == "power" and dtype is torch.bool:
            dtype = torch.int64
        numbers = kind not in ("power", "clamp") and len(tensors) < len(operands)
        shape, strides = elementwise(tensors, None if kind == "self" else _converted(tensors, dtype), numbers)
        return Spec(shape, torch.bool if kind == "bool" else dtype, strides)

    return rule


_POINTWISE: dict[str, tuple[str, int]] = {
    **dict.fromkeys("relu sign floor ceil trunc round bitwise_not abs gelu silu hardswish mish".split(), ("same", 1)),
    **dict.fromkeys("hardsigmoid leaky_relu elu softplus selu celu hardtanh threshold".split(), ("same", 1)),
    **dict.fromkeys("nan_to_num frac positive relu6 softshrink hardshrink".split(), ("same", 1)),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"), ("float", 1)),
    **dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh"), ("float", 1)),
    **dict.fromkeys(("acosh", "atanh", "sigmoid", "erf", "erfc", "erfinv", "reciprocal", "lgamma"), ("float", 1)),
    **dict.fromkeys(("digamma", "logit", "sinc"), ("float", 1)),
    **dict.fromkeys(("isnan", "isinf", "isfinite", "signbit", "logical_not", "isposinf", "isneginf"), ("bool", 1)),
    **dict.fromkeys("add sub mul maximum minimum fmax fmin fmod remainder floor_divide gcd".split(), ("same", 2)),
    **dict.fromkeys("bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split(), ("same", 2)),
    **dict.fromkeys("hypot nextafter logaddexp logaddexp2 heaviside".split(), ("same", 2)),
    **dict.fromkeys(("clamp_min", "clamp_max"), ("clamp", 2)),
    **dict.fromkeys(("atan2", "copysign", "xlogy", "special_xlog1py"), ("float", 2)),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"), ("bool", 2)),
    **dict.fromkeys(
        [f"special_{kind}_polynomial_{letter}" for kind in ("chebyshev", "shifted_chebyshev") for letter in "tuvw"],
        ("float", 2),
    ),
    **dict.fromkeys("special_hermite_polynomial_h special_hermite_polynomial_he special_zeta".split(), ("float", 2)),
    **dict.fromkeys("special_laguerre_polynomial_l special_legendre_polynomial_p igamma igammac".split(), ("float", 2)),
    "neg": ("number", 1),
    "div": ("div", 2),
    "true_divide": ("float", 2),
    "pow": ("power", 2),
    "clamp": ("clamp", 3),
    "addcmul": ("same", 3),
    "addcdiv": ("same", 3),
    "masked_fill": ("self", 2),
}
"""Op name -> (how its dtype follows, number of operands).

same: the promoted dtype. number: that too, and no bool. float: integers become the default float. bool. self: the
first operand's. power: bool becomes int64. div: float unless rounded. clamp: as same; numbers are no operands.
"""


def _where(cond: Any, a: Any, b: Any) -> Spec:
    dtype = promote([a, b])
    shape, strides = elementwise([cond, a, b], [cond.stride(), *_converted([a, b], dtype)])
    return Spec(shape, dtype, strides)


# ---------------------------------------------------------------- reductions


def _reduced(shape: Shape, dims: Any, keep: bool) -> Shape:
    rank = len(shape)
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        folded = set(range(rank))
    else:
        folded = {d % rank if rank else 0 for d in ([dims] if isinstance(dims, int) else dims)}
    if keep:
        return tuple(1 if i in folded else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in folded)


def _no_complex(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        raise NoRule
    return dtype


def _sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Spec:
    return Spec(_reduced(tuple(x.shape), dim, keepdim), _dtype_of_sums(x, dtype))


def _dtype_of_sums(x: Any, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None:
        dtype = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64
    return _no_complex(dtype)


def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Spec:
    dtype = dtype or x.dtype
    if not dtype.is_floating_point:
        raise NoRule
    return Spec(_reduced(tuple(x.shape), dim, keepdim), dtype)


def _extreme(x: Any, dim: Any = None, keepdim: bool = False) -> Spec:
    return Spec(_reduced(tuple(x.shape), dim, keepdim), _no_complex(x.dtype))


def _truth(x: Any, dim: Any = None, keepdim: bool = False) -> Spec:
    return Spec(_reduced(tuple(x.shape), dim, keepdim), torch.uint8 if x.dtype is torch.uint8 else torch.bool)


def _position(x: Any, dim: Any = None, keepdim: bool = False) -> Spec:
    shape = tuple(x.shape)
    if dim is None and keepdim:
        raise NoRule
    return Spec(_reduced(shape, dim, keepdim), torch.int64)


def _extreme_and_position(x: Any, dim: int, keepdim: bool = False) -> tuple[Spec, Spec]:
    shape = _reduced(tuple(x.shape), dim, keepdim)
    return Spec(shape, _no_complex(x.dtype)), Spec(shape, torch.int64)


def _variance_and_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Spec, Spec]:
    spec = _mean(x, dim, keepdim)
    return spec, spec


def _softmax(x: Any, dim: int, to_float: bool) -> Spec:
    if not x.dtype.is_floating_point or to_float:
        raise NoRule
    return Spec(tuple(x.shape), x.dtype)


def _cumulative(x: Any, dim: int, *, dtype: Any = None) -> Spec:
    return Spec(tuple(x.shape), _dtype_of_sums(x, dtype))


def _topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Spec, Spec]:
    shape = list(x.shape)
    if not shape or k > shape[dim]:
        raise NoRule
    shape[dim] = k
    return Spec(tuple(shape), x.dtype), Spec(tuple(shape), torch.int64)


# ---------------------------------------------------------------- matrix products


def _mm(a: Any, b: Any) -> Spec:
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise NoRule
    return Spec((a.shape[0], b.shape[1]), a.dtype)


def _bmm(a: Any, b: Any) -> Spec:
    wrong = a.dim() != 3 or b.dim() != 3 or a.shape[2] != b.shape[1] or a.shape[0] != b.shape[0]
    if wrong or a.dtype != b.dtype:
        raise NoRule
    return Spec((a.shape[0], a.shape[1], b.shape[2]), a.dtype)


def _added(product: Callable[[Any, Any], Spec]) -> _Rule:
    def rule(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Spec:
        spec = product(a, b)
        if bias.dtype != spec.dtype or broadcast([tuple(bias.shape), spec.shape]) != spec.shape:
            raise NoRule
        return spec

    return rule


def _attention(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *, attn_mask: Any = None, scale: Any = None
) -> tuple[Spec, Spec]:
    batch, heads, length, width = q.shape
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    return (
        Spec((batch, heads, length, width), q.dtype, dense_strides(q)),
        Spec((batch, heads, length), wide, (length * heads, 1, heads)),
    )


# ---------------------------------------------------------------- networks


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Spec, Spec, Spec]:
    if x.device.type != "cpu" or (weight is not None and weight.dtype != x.dtype):
        raise NoRule
    lead = x.dim() - len(shape)
    for sizes in (x.shape[lead:], *[t.shape for t in (weight, bias) if t is not None]):  # symbols have to be the same
        if any(size != expected for size, expected in zip(sizes, shape, strict=True)):
            raise NoRule  # PyTorch's code says what is wrong
    stat = Spec((*x.shape[:lead], *([1] * len(shape))), x.dtype)
    return Spec(tuple(x.shape), x.dtype), stat, stat


def _group_norm(
    x: Any, weight: Any, bias: Any, n: int, c: int, hw: int, group: int, eps: float
) -> tuple[Spec, Spec, Spec]:
    if x.device.type != "cpu":
        raise NoRule
    scales = [t for t in (weight, bias) if t is not None]
    mixed = [t for t in scales if t.dtype != x.dtype]
    narrow = x.dtype in (torch.bfloat16, torch.float16) and all(t.dtype is torch.float32 for t in mixed)
    fits = x.numel() == n * c * hw and all(t.numel() == c for t in scales)
    if not fits or (mixed and not narrow):  # the meta kernel does not look
        raise RuntimeError(f"group_norm of sizes {list(x.shape)}, not {n} * {c} * {hw}, or of mixed dtypes")
    if mixed or not x.is_contiguous():
        raise NoRule
    stat = Spec((n, group), x.dtype)
    return Spec(tuple(x.shape), x.dtype), stat, stat


def _embedding(weight: Any, indices: Any, *args: Any) -> Spec:
    if weight.dim() != 2 or indices.dtype not in (torch.int32, torch.int64):
        raise NoRule
    return Spec((*indices.shape, weight.shape[1]), weight.dtype)


def at(row: Sequence[int], i: int) -> int:
    """The number of a dimension; one alone is that of all."""
    return row[i] if len(row) > 1 else row[0]


def convolution_shape(
    x: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> tuple[int, ...]:
    """Return the shape of `aten.convolution`'s result; raises NoRule: eager refuses the arguments, or takes them in a
    way that needs a closer look."""
    channels = (weight.shape[0], weight.shape[1] * groups)
    if x.dim() != weight.dim() or x.shape[1] != channels[not transposed] or channels[0] % groups:
        raise NoRule
    sizes = []
    for i, (size, window) in enumerate(zip(x.shape[2:], weight.shape[2:], strict=True)):
        step, border, reach = at(stride, i), at(padding, i), at(dilation, i) * (window - 1)
        if step < 1 or border < 0 or at(dilation, i) < 1 or at(output_padding, i) < 0:
            raise NoRule
        if transposed:
            sizes.append((size - 1) * step - 2 * border + reach + at(output_padding, i) + 1)
        else:
            sizes.append((size + 2 * border - reach - 1) // step + 1)
    if min(sizes) < 1 or 0 in x.shape[1:]:
        raise NoRule
    return (x.shape[0], channels[transposed], *sizes)


def _laid_out_as(x: Any, shape: Shape, dtype: torch.dtype | None = None) -> Spec:
    """What ops on images make: channels last of channels last, else contiguous."""
    return Spec(shape, dtype or x.dtype, channels_last(shape) if is_channels_last(x) else None)


def _max_pool(*args: Any) -> tuple[Spec, Spec]:
    spec = _pool(*args)
    return spec, spec._replace(dtype=torch.int64)


def _avg_pool(x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), ceil_mode: bool = False, *how: Any) -> Spec:
    if how[1:] == (0,):  # divided by zero
        raise NoRule
    return _pool(x, kernel, stride, padding, (1,), ceil_mode)


def _pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
) -> Spec:
    if ceil_mode or x.dim() < 3:
        raise NoRule
    if any(not 0 <= 2 * at(padding, i) <= at(dilation, i) * (at(kernel, i) - 1) + 1 for i in range(2)):
        raise NoRule  # PyTorch's code says what is wrong
    sizes = [
        (x.shape[i - 2] + 2 * at(padding, i) - at(dilation, i) * (at(kernel, i) - 1) - 1) // at(stride or kernel, i) + 1
        for i in range(2)
    ]
    if min(sizes) < 1:
        raise NoRule
    return _laid_out_as(x, (*x.shape[:-2], *sizes))


# ---------------------------------------------------------------- moving data


def _clone(x: Any, *, memory_format: Any = None) -> Spec:
    if memory_format in (None, torch.preserve_format):
        return Spec(tuple(x.shape), x.dtype, dense_strides(x))
    if memory_format is torch.contiguous_format:
        return Spec(tuple(x.shape), x.dtype)
    raise NoRule


def _cat(tensors: Sequence[Any], dim: int = 0) -> Spec:
    first = tensors[0]
    if first.dim() == 0 or any(t.dim() != first.dim() for t in tensors):
        raise NoRule
    dim %= first.dim()
    shapes = [list(t.shape) for t in tensors]
    total = sum(shape.pop(dim) for shape in shapes)
    if any(shape != shapes[0] for shape in shapes):
        raise NoRule
    shapes[0].insert(dim, total)
    shape = tuple(shapes[0])
    return Spec(shape, promote(list(tensors)), channels_last(shape) if all(map(is_channels_last, tensors)) else None)


def _gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Spec:
    return Spec(tuple(index.shape), x.dtype)


def _index_select(x: Any, dim: int, index: Any) -> Spec:
    shape = list(x.shape)
    if not shape or index.dim() != 1:
        raise NoRule
    shape[dim] = index.shape[0]
    return Spec(tuple(shape), x.dtype)


def _index(x: Any, indices: Sequence[Any]) -> Spec:
    """Integer index tensors next to each other; their broadcast shape takes the place of the dimensions."""
    places = [i for i, index in enumerate(indices) if index is not None]
    tensors = [indices[i] for i in places]
    start, end = places[0], places[0] + len(places)
    if places != list(range(start, end)) or any(t.dtype not in (torch.int64, torch.int32) for t in tensors):
        raise NoRule
    shape = broadcast([tuple(t.shape) for t in tensors])
    after = x.dim() - end
    sizes = (*x.shape[:start], *shape, *x.shape[end:])
    if len(sizes) < 2:
        return Spec(sizes, x.dtype)
    if 0 in sizes:
        raise NoRule
    whole = (*[1] * start, *shape, *[1] * after)
    if any(map(has_symbols, tensors)):
        laid = [(*[1] * start, *broadcast_strides(tuple(t.shape), t.stride(), shape), *[1] * after) for t in tensors]
    else:
        with torch._C._DisableTorchDispatch():
            plain = [torch.empty_strided(t.shape, t.stride(), device="meta") for t in tensors]
            laid = [t.expand(shape).reshape(whole).stride() for t in plain]
    operands = [broadcast_strides(whole, strides, sizes) for strides in laid]
    source = (*x.stride()[:start], *[0] * len(shape), *x.stride()[end:])
    return Spec(sizes, x.dtype, packed(sizes, [source, *operands]))


def _like_first(x: Any, *args: Any, **kwargs: Any) -> Spec:
    if not x.is_contiguous():
        raise NoRule
    return Spec(tuple(x.shape), x.dtype)


def _part_written(part: Callable[..., Any]) -> _Rule:
    """Rule of an op that writes a tensor of the shape that a view of its first argument has."""

    def rule(x: Any, source: Any, *args: Any, **kwargs: Any) -> Spec:
        if has_symbols(x) or any(type(a) is torch.SymInt for a in (*args, *kwargs.values())):
            seen: Any = VIEWS[part](x, *args, **kwargs)[0]
        else:
            with torch._C._DisableTorchDispatch():
                seen = part(torch.empty(x.shape, device="meta"), *args, **kwargs).shape
        if tuple(seen) != tuple(source.shape):  # the meta kernel does not look
            raise RuntimeError(f"src has the sizes {list(source.shape)}, and what it is written to {list(seen)}")
        return _like_first(x)

    return rule


def _masked_fill(x: Any, mask: Any, value: Any) -> Spec:
    return Spec(broadcast([tuple(x.shape), tuple(mask.shape)]), x.dtype)


def _rsub(x: Any, other: Any, alpha: Any = 1) -> Spec:
    """The kernel subtracts the other way round, so its operands' order is the other one."""
    dtype, tensors = promote([x, other]), [other, x] if isinstance(other, torch.Tensor) else [x]
    shape, strides = elementwise(tensors, _converted(tensors, dtype), len(tensors) < 2)
    return Spec(shape, dtype, strides)


def _pad(x: Any, pad: Sequence[int], value: Any = 0) -> Spec:
    shape = list(x.shape)
    for i in range(len(pad) // 2):
        shape[-1 - i] += pad[2 * i] + pad[2 * i + 1]
    if any(n < 0 for n in shape):
        raise NoRule
    return _laid_out_as(x, tuple(shape))


def _repeat(x: Any, repeats: Sequence[int]) -> Spec:
    shape = (1,) * (len(repeats) - x.dim()) + tuple(x.shape)
    return Spec(tuple(n * r for n, r in zip(shape, repeats, strict=True)), x.dtype)


def _stack(tensors: Sequence[Any], dim: int = 0) -> Spec:
    first = tensors[0]
    if any(t.shape != first.shape for t in tensors) or first.dim() in (3, 4):
        raise NoRule  # results of 4 and 5 dimensions may be channels-last
    shape = list(first.shape)
    shape.insert(dim % (len(shape) + 1), len(tensors))
    return Spec(tuple(shape), promote(list(tensors)))


def _sort(x: Any, dim: int = -1, descending: bool = False) -> tuple[Spec, Spec]:
    if not x.is_contiguous():
        raise NoRule
    return Spec(tuple(x.shape), x.dtype), Spec(tuple(x.shape), torch.int64)


def _lerp(a: Any, b: Any, weight: Any) -> Spec:
    tensors = [t for t in (a, b, weight) if isinstance(t, torch.Tensor)]
    if any(t.dtype is not a.dtype for t in tensors):
        raise NoRule
    shape, strides = elementwise(tensors)
    return Spec(shape, promote(tensors), strides)


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Spec:
    return _mean(x, dim, keepdim, dtype=dtype)


def _loss(a: Any, b: Any, reduction: int = 1) -> Spec:
    dtype = promote([a, b])
    shape, strides = elementwise([a, b], _converted([a, b], dtype))
    return Spec(shape, dtype, strides) if reduction == 0 else Spec((), dtype)


def _batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Spec, Spec, Spec]:
    last = is_normalized_channels_last(x)
    mixed = any(t is not None and t.dtype is not x.dtype for t in (weight, bias, mean, var))
    if (x.device.type != "cpu" and (last or not x.is_contiguous())) or mixed:
        raise NoRule
    stat, shape = Spec((x.shape[1] if training else 0,), x.dtype), tuple(x.shape)
    return Spec(shape, x.dtype, channels_last(shape) if last else None), stat, stat


def _adaptive_pool(x: Any, size: Sequence[int]) -> Spec:
    if len(size) != 2:
        raise NoRule
    return _laid_out_as(x, (*x.shape[:-2], *size))


# ---------------------------------------------------------------- new tensors


def _shaped(size: Sequence[int], *args: Any, dtype: Any = None, **kwargs: Any) -> Spec:
    return Spec(tuple(size), dtype or torch.get_default_dtype())


def _arange(*args: Any, dtype: Any = None, **kwargs: Any) -> Spec:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    if dtype is None:
        whole = all(isinstance(n, (int, torch.SymInt)) for n in (start, end, step))
        dtype = torch.int64 if whole else torch.get_default_dtype()
    if dtype is torch.int64:  # eager makes whole numbers of them first; with other dtypes after it has counted
        start, end, step = (int(n) if isinstance(n, float) else n for n in (start, end, step))
    if step == 0 or (end - start) * step < 0:
        raise NoRule
    whole = all(isinstance(n, (int, torch.SymInt)) for n in (start, end, step))
    count = (end - start + step - (1 if step > 0 else -1)) // step if whole else math.ceil((end - start) / step)
    return Spec((count,), dtype)


def _multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> tuple[Spec, Spec | None]:
    """Without `need_weights` the second result is no tensor, which the op's own meta kernel does not say."""
    out = Spec(tuple(query.shape), query.dtype)
    if query.dim() != 3 or key.dim() != 3 or query.numel() == 0:
        raise NoRule
    batch, length = query.shape[:2]
    of_head = () if average else (heads,)
    return out, Spec((batch, *of_head, length, key.shape[1]), query.dtype) if need_weights else None


CONSTRUCTORS: dict[Any, Callable[..., Spec]] = {
    **dict.fromkeys(ops("zeros.default ones.default rand.default randn.default"), _shaped),
    aten.randint.default: lambda _, size, dtype=None, **__: _shaped(size, dtype=dtype or torch.int64),
    aten.randint.low: lambda _, __, size, dtype=None, **___: _shaped(size, dtype=dtype or torch.int64),
    aten.full.default: lambda size, value, dtype=None, **_: _shaped(size, dtype=dtype or category_of(value)),
    **dict.fromkeys(ops("arange.default arange.start arange.start_step"), _arange),
    aten.linspace.default: lambda _, __, steps, **named: _shaped((steps,), **named),
}
"""Op that makes a tensor from numbers -> rule of its arguments."""

RULES: dict[Any, Callable[..., Any]] = {
    aten.where.self: _where,
    **dict.fromkeys(ops("rsub.Tensor rsub.Scalar"), _rsub),
    **dict.fromkeys(ops("masked_fill.Scalar masked_fill.Tensor"), _masked_fill),
    **dict.fromkeys(ops("sum.default sum.dim_IntList prod.dim_int"), _sum),
    aten.mean.default: lambda x, *, dtype=None: _mean(x, dtype=dtype),
    aten.mean.dim: _mean,
    **dict.fromkeys(ops("amax.default amin.default max.default min.default"), _extreme),
    **dict.fromkeys(ops("max.dim min.dim"), _extreme_and_position),
    **dict.fromkeys(ops("any.default any.dim all.default all.dim"), _truth),
    **dict.fromkeys(ops("argmax.default argmin.default"), _position),
    **dict.fromkeys(ops("var.correction std.correction"), lambda *args, **named: _variance_and_mean(*args, **named)[0]),
    aten.var_mean.correction: _variance_and_mean,
    **dict.fromkeys(ops("_softmax.default _log_softmax.default"), _softmax),
    aten._safe_softmax.default: lambda x, dim, dtype=None: _softmax(x, dim, dtype is not None),
    aten.cumsum.default: _cumulative,
    aten.topk.default: _topk,
    aten.mm.default: _mm,
    aten.bmm.default: _bmm,
    aten.addmm.default: _added(_mm),
    aten.baddbmm.default: _added(_bmm),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._native_multi_head_attention.default: _multi_head_attention,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.embedding.default: _embedding,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.avg_pool2d.default: _avg_pool,
    aten.clone.default: _clone,
    aten.cat.default: _cat,
    aten.gather.default: _gather,
    aten.index_select.default: _index_select,
    **dict.fromkeys(ops("index.Tensor _unsafe_index.Tensor"), _index),
    aten.constant_pad_nd.default: _pad,
    aten.repeat.default: _repeat,
    aten.stack.default: _stack,
    aten._unsafe_view.default: lambda x, size: Spec(view(x, size).shape, x.dtype, view(x, size).strides),
    aten.sort.default: _sort,
    **dict.fromkeys((aten.lerp.Scalar, aten.lerp.Tensor, aten.lerp_.Scalar, aten.lerp_.Tensor), _lerp),
    aten.linalg_vector_norm.default: _vector_norm,
    aten.mse_loss.default: _loss,
    aten.native_batch_norm.default: _batch_norm,
    aten._adaptive_avg_pool2d.default: _adaptive_pool,
    **dict.fromkeys(
        ops("upsample_nearest2d.default upsample_bilinear2d.default upsample_bicubic2d.default"),
        lambda x, size, *args: _laid_out_as(x, (*x.shape[:2], *size)),
    ),
    aten.prod.default: lambda x, *, dtype=None: _sum(x, dtype=dtype),
    **dict.fromkeys(ops("tril.default triu.default"), lambda x, diagonal=0: Spec(tuple(x.shape), x.dtype)),
    **dict.fromkeys(
        ops("flip.default roll.default index_put.default scatter.value scatter.src bernoulli.default bernoulli.p"),
        _like_first,
    ),
    aten.slice_scatter.default: _part_written(aten.slice.Tensor),
    aten.select_scatter.default: _part_written(aten.select.int),
    aten.diagonal_scatter.default: _part_written(aten.diagonal.default),
    **dict.fromkeys(
        ops("select_backward.default slice_backward.default diagonal_backward.default"),
        lambda gradient, shape, *_: Spec(tuple(shape), gradient.dtype),
    ),
    # Its kernel makes a contiguous result of any exponent.
    aten.pow.Scalar: lambda *args: _pointwise("power", 2)(*args)._replace(strides=None),
    # torch's own rule refuses bool, which eager shifts as int64.
    **dict.fromkeys((aten.__lshift__.Scalar, aten.__rshift__.Scalar), _pointwise("same", 2)),
    **dict.fromkeys((aten.__lshift__.Tensor, aten.__rshift__.Tensor), _pointwise("same", 2)),
}
"""Op -> rule of its arguments, for ops that have one of their own."""

_IMAGE_PADS = (aten.reflection_pad2d, aten.reflection_pad3d, aten.replication_pad2d, aten.replication_pad3d)
LAYOUTS: dict[Any, Callable[..., Shape]] = {
    **{pad.default: lambda shape, x, *_: _laid_out_as(x, shape).strides or contiguous(shape) for pad in _IMAGE_PADS},
    **dict.fromkeys(
        ops("nonzero_static.default normal.Tensor_Tensor normal.Tensor_float normal.float_Tensor"),
        lambda shape, *_: contiguous(shape),
    ),
    **dict.fromkeys((aten.complex.default, aten.polar.default), lambda shape, *parts: elementwise(parts)[1]),
    aten.index_fill.int_Scalar: lambda shape, x, *_: dense_strides(x),
    aten.angle.default: lambda shape, x: contiguous(shape) if x.is_complex() else dense_strides(x),
}
"""Op -> strides of its result, from its shape and the arguments, where only those of PyTorch's meta kernel differ."""


def find_rule(func: Any) -> Callable[..., Any] | None:
    """Return the rule of an op that makes new tensors or writes its first argument, None if there is none."""
    rule = RULES.get(func)
    if rule is not None:
        return rule
    if func.namespace != "aten" or func._overloadname.endswith("out"):
        return None
    return _pointwise_rule(func._opname.removesuffix("_"))


@cache
def _pointwise_rule(name: str) -> _Rule | None:
    row = _POINTWISE.get(name)
    return None if row is None else _pointwise(*row)
