"""Which ATen ops stay whole, and how the others are taken apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, _decomp
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._ops import OpOverload

from firebrick.fakes.strides import is_channels_last, is_normalized_channels_last
from firebrick.trace.attention_recipes import encoder_layer, multi_head_attention

aten = torch.ops.aten


def named(names: str) -> frozenset[Any]:
    """Those ATen operators of a row of names that this torch has."""
    pairs = [name.split(".") for name in names.split()]
    return frozenset(getattr(getattr(aten, op), form) for op, form in pairs if hasattr(getattr(aten, op, None), form))


_KEPT = named(
    # Library kernels that beat what they decompose into.
    "_scaled_dot_product_flash_attention_for_cpu.default scaled_dot_product_attention.default baddbmm.default "
    "linalg_cross.default _pdist_forward.default _cdist_forward.default embedding_dense_backward.default "
    # Views and layouts that lowering and prepacking match by name.
    "t.default transpose.int select_scatter.default empty_like.default detach.default "
    # Reads and writes at computed places: the rules need to know whether eager looks at the bounds.
    "_unsafe_index.Tensor take.default index_add.default index_copy.default index_fill.int_Scalar "
    # PyTorch's own take long to trace, and import its compiler.
    "lerp.Scalar lerp.Tensor addcmul.default addcdiv.default "
    # PyTorch's own adds up the terms of targets behind a -1.
    "multilabel_margin_loss_forward.default "
    # PyTorch's own lay a result out otherwise than eager's kernels.
    "logaddexp.default logaddexp2.default heaviside.default xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self "
    "special_xlog1py.default special_xlog1py.other_scalar special_xlog1py.self_scalar "
    # One rule each in lowering.
    "arange.default arange.start where.self silu.default hardswish.default masked_fill.Scalar masked_fill.Tensor "
    "index_put.default sum.default roll.default reflection_pad1d.default reflection_pad2d.default "
    "reflection_pad3d.default replication_pad1d.default replication_pad2d.default replication_pad3d.default"
)
"""Ops of the core decompositions that stay whole all the same."""

_ALSO = named(
    "upsample_nearest1d.default upsample_nearest2d.default upsample_nearest3d.default upsample_bicubic2d.default "
    "_upsample_nearest_exact1d.default _upsample_nearest_exact2d.default _upsample_nearest_exact3d.default "
    "hardtanh.default leaky_relu.default elu.default split_with_sizes.default isnan.default addmv.default"
)
"""Ops outside of the core table that are taken apart with PyTorch's own decomposition."""


_MOVES = (
    "alias_copy.default block_diag.default channel_shuffle.default diag_embed.default diagonal_backward.default "
    "diagonal_copy.default expand_copy.default eye.default eye.m fill.Scalar fill.Tensor index_copy.default "
    "index_fill.int_Scalar index_fill.int_Tensor isnan.default isneginf.default isposinf.default new_empty.default "
    "new_full.default new_ones.default new_zeros.default ones.default ones_like.default pixel_shuffle.default "
    "pixel_unshuffle.default _reshape_alias.default "
    "resize_as.default rot90.default select_backward.default slice_backward.default split.Tensor "
    "split_with_sizes.default split_with_sizes_copy.default squeeze.default squeeze.dim squeeze_copy.default "
    "squeeze_copy.dim squeeze_copy.dims stack.default t_copy.default take.default transpose_copy.int unbind.int "
    "unfold_copy.default _unsafe_index.Tensor unsafe_split.Tensor unsafe_split_with_sizes.default "
    "unsqueeze_copy.default _unsafe_view.default upsample_nearest2d.default zero.default zeros.default "
    "zeros_like.default fill_diagonal_.default all.default all.dim all.dims clamp_max.default clamp_max.Tensor "
    "clamp_min.default clamp_min.Tensor frac.default hardtanh.default leaky_relu.default nan_to_num.default "
    "masked_scatter.default sgn.default threshold.default threshold_backward.default tril.default triu.default"
)
_NOT_FUNCTIONAL = (
    "_amp_foreach_non_finite_check_and_unscale_.default "
    "native_batch_norm.default _native_batch_norm_legit.default _native_batch_norm_legit.no_stats "
    "cudnn_batch_norm.default miopen_batch_norm.default _batch_norm_with_update.default"
)
EXACT = named(f"{_MOVES} {_NOT_FUNCTIONAL}")
"""Ops that `numerics="eager"` takes apart too: they move data, or write arguments without saying so."""


def _per_channel(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape([1, x.shape[0]] + [1] * (like.dim() - 2))


def _layout_of(x: Tensor, is_last: Callable[[Any], bool] = is_channels_last) -> torch.memory_format:
    """What eager's kernels on images make of an argument."""
    if not is_last(x):
        return torch.contiguous_format
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def _laid_out_as(value: Tensor, model: Tensor) -> Tensor:
    """A value with the strides that `empty_like` of another gives, also in dimensions of one element."""
    result = torch.empty_like(model, dtype=value.dtype)
    return value if value.stride() == result.stride() else result.copy_(value)


def _batch_norm_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    """x * scale + shift with scale and shift made from the statistics alone, so that they fold to constants."""
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    scale = torch.rsqrt(var.to(wide) + eps)
    if weight is not None:
        scale = scale * weight.to(wide)
    shift = -mean.to(wide) * scale
    if bias is not None:
        shift = shift + bias.to(wide)
    out = x.to(wide) * _per_channel(scale, x) + _per_channel(shift, x)
    return out.to(x.dtype)


def _batch_norm_training(
    x: Tensor, others: Sequence[Tensor | None], momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize by the batch's statistics and update the running ones in place."""
    weight, bias, running_mean, running_var = others
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    axes = [0, *range(2, x.dim())]
    wide_x = x.to(wide)
    # Eager's kernel folds in double: a mean that is off by one bit shows where the variance is small.
    mean = wide_x.mean(axes, dtype=torch.float64).to(wide)
    centered = wide_x - _per_channel(mean, x)
    var = (centered * centered).mean(axes)
    exact_rstd = torch.rsqrt(var.to(torch.float64) + eps)
    scale = exact_rstd if weight is None else exact_rstd * weight
    out = centered * _per_channel(scale.to(wide), x)
    if bias is not None:
        out = out + _per_channel(bias.to(wide), x)
    rstd = exact_rstd.to(wide)
    if running_mean is not None:
        running_mean.copy_(mean * momentum + running_mean * (1 - momentum))
    if running_var is not None:
        count = x.numel() // x.shape[1]
        unbiased = var * count / torch.sym_max(count - 1, 1)
        running_var.copy_(unbiased * momentum + running_var * (1 - momentum))
    # Eager keeps statistics in the type of x, and in f32 on GPUs and where the other arguments have another.
    stat_dtype = next((t.dtype for t in others if t is not None), x.dtype)
    stat_dtype = x.dtype if stat_dtype == x.dtype and x.device.type == "cpu" else wide
    return out.to(x.dtype), mean.to(stat_dtype), rstd.to(stat_dtype)


def _native_batch_norm(x: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    *parts, training, momentum, eps = args
    if training:
        out, mean, rstd = _batch_norm_training(x, parts, momentum, eps)
    else:
        weight, bias, mean, var = parts
        out = _batch_norm_inference(x, weight, bias, mean, var, eps)
        mean = rstd = x.new_empty(0)
    like = torch.empty_like(x, memory_format=_layout_of(x, is_normalized_channels_last))
    return (_laid_out_as(out, like) if x.device.type == "cpu" else out), mean, rstd


def _with_reserve(batch_norm: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The op as libraries have it, which return memory of their own for the backward."""
    return lambda x, *rest: (*batch_norm(x, *rest), x.new_empty(0, dtype=torch.uint8))


def _fill_diagonal(x: Tensor, value: float, wrap: bool = False) -> Tensor:
    length = min(x.shape)
    step = sum(x.stride())
    if wrap and x.dim() == 2 and x.shape[0] > x.shape[1]:
        length = (x.numel() + x.shape[1]) // (x.shape[1] + 1)
    x.as_strided([length], [step], x.storage_offset()).fill_(value)
    return x


def _linspace_of(op: OpOverload) -> Callable[..., Tensor]:
    """Of floats: whole numbers are rounded from steps that eager's kernel takes in an order of its own."""

    def linspace(*args: Any, dtype: torch.dtype | None = None, **more: Any) -> Tensor:
        if dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
            return NotImplemented
        return decomposition_table[op](*args, dtype=dtype, **more)

    return linspace


def _pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    """On CPUs eager gives a tensor without elements back as it is, with sizes that nobody would expect."""
    as_it_is = x.numel() == 0 and x.device.type == "cpu"
    return x.clone() if as_it_is else decomposition_table[aten.pixel_unshuffle.default](x, factor)


def _upsample_linear(x: Tensor, size: list[int], align_corners: bool, *scales: float | None) -> Tensor:
    """Linear interpolation along each of the last dimensions: a blend of the two neighbours of each source place."""
    if x.dtype is torch.uint8:  # eager's kernel rounds its weights to 16 bits
        return NotImplemented
    layout = _layout_of(x)
    if not x.is_floating_point():
        return decomposition_table[_LINEAR[x.dim() - 3]](x, size, align_corners, *scales)
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    firsts, seconds, shares = [], [], []
    for i, (old, new, scale) in enumerate(zip(x.shape[2:], size, (*scales, *[None] * 3), strict=False)):
        place = torch.arange(new, device=x.device).to(wide)
        if align_corners:
            place = place * ((old - 1) / (new - 1) if new > 1 else 0.0)
        else:
            place = ((place + 0.5) * (1 / scale if scale else old / new) - 0.5).clamp(min=0.0)
        place = place.reshape(new, *[1] * (x.dim() - 3 - i))
        firsts.append(place.to(torch.int64))
        # As eager: where a size stays each place is blended with itself, which is NaN of an infinity.
        seconds.append(firsts[-1] if old == new else (firsts[-1] + 1).clamp(max=old - 1))
        shares.append((place - firsts[-1]).clamp(0.0, 1.0))
    corners = [
        torch.ops.aten._unsafe_index(x, [None, None, *places]).to(wide)
        for places in itertools.product(*zip(firsts, seconds, strict=True))
    ]
    for share in reversed(shares):
        # As eager: a + (b - a) * share would be NaN between infinities.
        corners = [a * (1 - share) + b * share for a, b in zip(corners[::2], corners[1::2], strict=True)]
    out = corners[0].to(x.dtype)
    # One channel is in both layouts at once: only a copy says which.
    one = x.shape[1] == 1 and layout is torch.channels_last
    return out.clone(memory_format=layout) if one else out.contiguous(memory_format=layout)


def _rows_of(op: OpOverload) -> Callable[..., Tensor]:
    """PyTorch's own keep the layout of a tensor whose axes have changed places; eager's result is contiguous."""
    return lambda *args: decomposition_table[op](*args).contiguous()


_LINEAR = (aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default)


def _filled(number: int) -> Callable[..., Tensor]:
    def make(size: list[int], *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
        dtype = dtype or torch.get_default_dtype()
        return torch.full(size, bool(number) if dtype is torch.bool else number, dtype=dtype, **options)

    return make


def _stack(tensors: list[Tensor], dim: int = 0) -> Tensor:
    first = tensors[0]
    dim %= first.dim() + 1
    if dim == first.dim():
        return torch.cat([t.unsqueeze(dim) for t in tensors], dim)
    shape = list(first.shape)
    shape.insert(dim, len(tensors))
    return torch.cat(tensors, dim).view(shape)


def _contiguous_of(op: OpOverload) -> tuple[OpOverload, Callable[..., tuple[Tensor, Tensor]]]:
    """On a CPU eager's first result is contiguous, whatever its arguments are."""

    def pair(*args: Any) -> tuple[Tensor, Tensor]:
        result, buffer = decomposition_table[op](*args)
        return (result.contiguous() if result.device.type == "cpu" else result), buffer

    return op, pair


def _like_input(op: OpOverload, place: int) -> tuple[OpOverload, Callable[..., Tensor]]:
    """A loss whose kernel lays its numbers out as its first argument; `place`: of the argument that says how to sum."""

    def loss(x: Tensor, *args: Any) -> Tensor:
        result: Tensor = decomposition_table[op](x, *args)
        return _laid_out_as(result, x.expand_as(result)) if args[place - 1 : place] == (0,) else result

    return op, loss


def asserted(x: Tensor, truth: Tensor, text: str) -> Tensor:
    """A tensor as it is; on CPUs, where eager's kernel looks at values that its decomposition does not, the call
    raises unless all of `truth` is true."""
    if x.device.type != "cpu":
        return x
    return aten._functional_assert_async.msg(truth.all(), text, x)


def _binary_cross_entropy(x: Tensor, target: Tensor, *args: Any) -> Tensor:
    for name, t in (("input", x), ("target", target)):
        x = asserted(x, (t >= 0) & (t <= 1), f"all elements of {name} should be between 0 and 1")
    return _like_input(aten.binary_cross_entropy.default, 3)[1](x, target, *args)


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """Which element of the source stands at a place is how many places before it the mask has: counted along rows, then
    over the rows. Behind the dimensions that an expanded mask depends on, all elements are taken or none."""
    x, mask = torch.broadcast_tensors(x, mask)
    held, size, tail = mask, source.numel(), 1
    while held.dim() > 1 and held.stride(-1) == 0:
        held, tail = held[..., 0], tail * held.shape[-1]
    fits = all(isinstance(n, int) for n in (size, *x.shape)) and 0 not in x.shape and x.dim() and size >= tail
    if not fits or mask.dtype is not torch.bool or source.dtype != x.dtype:
        return NotImplemented
    counts = held.reshape(-1, held.shape[-1]).to(torch.int64).cumsum(-1)
    totals = counts[:, -1]
    sums = totals.cumsum(0)
    x = asserted(x, sums[-1] * tail <= size, "Number of elements of source < number of ones in mask")
    number = ((sums - totals).unsqueeze(-1) + counts - 1).reshape(held.shape)
    rows = source.reshape(-1)[: size // tail * tail].reshape(-1, tail)
    return torch.where(mask, aten._unsafe_index(rows, [number]).reshape(x.shape), x).contiguous()


def _channel_shuffle(x: Tensor, groups: int) -> Tensor:
    shuffled: Tensor = decomposition_table[aten.channel_shuffle.default](x, groups)
    return shuffled.contiguous(memory_format=_layout_of(x))


def _soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """PyTorch's own takes 1 from a sigmoid, which leaves nothing of small gradients."""
    result = -target * grad * torch.sigmoid(-target * x)
    return result / x.numel() if reduction == 1 else result


def _dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """PyTorch's own lays the result out as its kernel for GPUs does."""
    on_gpu = decomposition_table[aten.native_dropout_backward.default]
    return grad * mask * scale if grad.device.type == "cpu" else on_gpu(grad, mask, scale)


def _max_unpool_of(op: OpOverload) -> Callable[..., Tensor]:
    def max_unpool(x: Tensor, places: Tensor, size: list[int], *args: Any) -> Tensor:
        inside = (places >= 0) & (places < math.prod(size))
        out: Tensor = decomposition_table[op](asserted(x, inside, "Found an invalid max index"), places, size, *args)
        if op is aten.max_unpool3d.default:
            return out.contiguous()
        return out.contiguous(memory_format=_layout_of(x)) if x.dim() == 4 else out

    return max_unpool


def _unscale(gradients: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Write what `GradScaler.unscale_` writes."""
    for gradient in gradients:
        found_inf.copy_(torch.where(gradient.isfinite().all(), found_inf, 1))
        gradient.copy_(gradient * inv_scale.reshape([1] * gradient.dim()))


def _isin(x: Tensor, tests: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    """PyTorch's own asks for a power of a size, to choose between the two."""
    places, tests = x.reshape(-1), tests.reshape(-1)
    if tests.numel() <= 16:
        inside = (places.unsqueeze(1) == tests).any(1)
    else:
        dtype = torch.promote_types(x.dtype, tests.dtype)
        places, tests = places.to(dtype), tests.to(dtype).sort()[0]
        inside = tests[torch.searchsorted(tests, places).clamp_max(tests.numel() - 1)] == places
    return (~inside if invert else inside).reshape(x.shape)


_BY_SIXTH: dict[OpOverload, Callable[..., Tensor]] = {
    aten.hardsigmoid.default: lambda x: (x + 3).clamp(0, 6),
    aten.hardsigmoid_backward.default: lambda grad, x: torch.where((x > -3) & (x < 3), grad, 0.0),
    aten.hardswish.default: lambda x: x * (x + 3).clamp(0, 6),
}
"""What a GPU's kernels multiply by a sixth."""


def _by_sixth_of(op: OpOverload) -> Callable[..., Tensor]:
    """Those kernels, and one of CPUs, have float32's sixth in float64 too."""

    def hard(*args: Tensor) -> Tensor:
        if args[0].dtype is torch.float64 and (args[0].device.type == "cuda" or "backward" in op.name()):
            return _BY_SIXTH[op](*args) * 0.1666666716337204
        return NotImplemented if op in _KEPT else decomposition_table[op](*args)

    return hard


_OWN: dict[OpOverload, Callable[..., Any]] = {
    **{op: _by_sixth_of(op) for op in _BY_SIXTH},
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    **dict(map(_contiguous_of, (aten.log_sigmoid_forward.default, aten.nll_loss2d_forward.default))),
    aten._native_multi_head_attention.default: multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: encoder_layer,
    # PyTorch's own import sympy.
    **dict.fromkeys(_LINEAR, _upsample_linear),
    aten.frac.default: lambda x: x - x.trunc(),  # torch 2.11's gives -0.0 for itself
    aten.zeros.default: _filled(0),
    aten.ones.default: _filled(1),
    aten.stack.default: _stack,
    aten.native_batch_norm.default: _native_batch_norm,
    aten._native_batch_norm_legit.default: _native_batch_norm,
    aten._native_batch_norm_legit.no_stats: lambda x, w, b, *how: _native_batch_norm(x, w, b, None, None, *how),
    aten._native_batch_norm_legit_no_training.default: lambda *x: _native_batch_norm(*(*x[:5], False, *x[5:])),
    aten.cudnn_batch_norm.default: _with_reserve(_native_batch_norm),
    aten.miopen_batch_norm.default: _native_batch_norm,
    aten._batch_norm_with_update.default: _with_reserve(lambda *x: _native_batch_norm(*(*x[:5], True, *x[5:]))),
    aten.fill_diagonal_.default: _fill_diagonal,
    aten.isin.Tensor_Tensor: _isin,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.index_fill.int_Tensor: lambda x, *to: _laid_out_as(decomposition_table[aten.index_fill.int_Tensor](x, *to), x),
    aten.masked_scatter.default: _masked_scatter,
    **dict((_like_input(aten.huber_loss.default, 2),)),
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    **{op: _max_unpool_of(op) for op in (aten.max_unpool2d.default, aten.max_unpool3d.default)},
    aten.native_dropout_backward.default: _dropout_backward,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
    **{op: _rows_of(op) for op in (aten.upsample_nearest1d.default, aten._upsample_nearest_exact1d.default)},
    **{
        op: _linspace_of(op)
        for op in (getattr(aten.linspace, name) for name in aten.linspace.overloads() if not name.endswith("out"))
        if op in decomposition_table
    },
    # Its functional form takes its arguments in another order.
    aten.polygamma_.default: lambda x, n: x.copy_(torch.polygamma(n, x)),
    aten.__lshift__.Scalar: torch.bitwise_left_shift,
    aten.__lshift__.Tensor: torch.bitwise_left_shift,
    aten.__rshift__.Scalar: torch.bitwise_right_shift,
    aten.__rshift__.Tensor: torch.bitwise_right_shift,
}


@cache
def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """Return op -> function of the same arguments that calls smaller ops.

    Ops that are made of others in C++ are not in it: naming all of them takes 3 MiB.
    """
    core = getattr(_decomp, "_core_aten_decompositions_post_autograd", core_aten_decompositions)
    table = {op: fn for op, fn in core().items() if isinstance(op, torch._ops.OpOverload) and op not in _KEPT}
    random = torch.Tag.nondeterministic_seeded  # they draw eager's numbers, and writes are made functional first
    table = {op: fn for op, fn in table.items() if not op._schema.is_mutable and random not in op.tags}
    table.update({op: decomposition_table[op] for op in _ALSO if op in decomposition_table})
    table.update(_OWN)
    return table
