"""Takes the fused layers of attention of PyTorch's inference apart, so that projections, norms and activations fuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention

from firebrick.targets.base import Target

aten = torch.ops.aten


def _in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Any:
    """`scaled_dot_product_attention` as matmuls and a softmax, laid out like the query, as eager's is."""
    if dropout_p or query.dim() != 4:
        return NotImplemented
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(query.dtype)
    attended = aten._scaled_dot_product_attention_math(query, key, value, attn_mask, 0.0, is_causal, **named)[0]
    order = sorted(range(4), key=query.stride, reverse=True)
    return attended.permute(order).contiguous().permute([order.index(d) for d in range(4)])


def with_rows(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *rest: Any, **named: Any
) -> Any:
    """`scaled_dot_product_attention` with a mask whose rows lie in memory: the GPU's kernels take no other, so that one
    that repeats an element would be matmuls in float32."""
    if attn_mask is None or not attn_mask.is_cuda or attn_mask.dim() < 2 or attn_mask.stride(-1) == 1:
        return NotImplemented
    once = attn_mask[tuple(slice(0, 1 if step == 0 else None) for step in attn_mask.stride()[:-1])]
    mask = once.contiguous().expand(attn_mask.shape)
    return scaled_dot_product_attention(query, key, value, mask, *rest, **named)


def attention_functions(targets: Mapping[str, Target]) -> dict[Any, Callable[..., Any]]:
    """Function -> the same in parts, where a machine with memory of its own lacks a kernel, else as kernels take it."""
    kernel = str(aten._scaled_dot_product_flash_attention_for_cpu.default).replace(".", "::", 1)
    lacking = any(not target.shares_memory and not target.runs(kernel) for target in targets.values())
    return {scaled_dot_product_attention: _in_parts if lacking else with_rows}


def _hidden(mask: Tensor | None, kind: int | None) -> Tensor | None:
    """What a fused attention layer hides, [batch, heads, query, key] or broadcast to it: what is not 0, as in eager.
    kind: 0, a mask [query, key]; 1, of padding, [batch, key]; 2, of all four; NotImplementedError: others."""
    if mask is None:
        return None
    if (kind, mask.dim()) not in ((0, 2), (1, 2), (2, 4)):
        raise NotImplementedError
    hidden = mask.to(torch.bool)
    return hidden[:, None, None] if kind == 1 else hidden


def _attend(
    inputs: Sequence[Tensor], heads: int, weights: Sequence[Tensor], hidden: Tensor | None, need_weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Attention of `heads` heads (https://arxiv.org/abs/1706.03762), and its weights; raises NotImplementedError."""
    (query, key, value), (qkv_weight, qkv_bias, proj_weight, proj_bias) = inputs, weights
    width = query.shape[-1]
    if width % heads or any(t.dim() != 3 or t.numel() == 0 for t in inputs):
        raise NotImplementedError
    if query is key is value:
        parts: Any = linear(query, qkv_weight, qkv_bias).split(width, -1)
    else:
        parts = [linear(*row) for row in zip(inputs, qkv_weight.split(width), qkv_bias.split(width), strict=True)]
    q, k, v = (t.view(*t.shape[:2], heads, -1).transpose(1, 2) for t in parts)
    scores = None
    if need_weights or hidden is not None:
        scores = (q * (width // heads) ** -0.5) @ k.transpose(-2, -1)
        scores = torch.softmax(scores if hidden is None else scores.masked_fill(hidden, -math.inf), -1)
    attended = scaled_dot_product_attention(q, k, v) if scores is None else scores @ v
    return linear(attended.transpose(1, 2).reshape(query.shape), proj_weight, proj_bias), scores


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`aten._native_multi_head_attention`, which `nn.MultiheadAttention` calls in inference."""
    weights = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    out, scores = _attend((query, key, value), heads, weights, _hidden(mask, mask_type), need_weights)
    if scores is None or not need_weights:
        return out, None
    return out, scores.mean(1) if average else scores


def encoder_layer(x: Tensor, width: int, heads: int, *rest: Any) -> Tensor:
    """`aten._transformer_encoder_layer_fwd`, which `nn.TransformerEncoderLayer` calls in inference."""
    *weights, use_gelu, norm_first, eps = rest[:7]
    weight_1, bias_1, weight_2, bias_2, up, up_bias, down, down_bias, *masks = rest[7:]
    hidden = _hidden(*(*masks, None, None)[:2])

    def attend(t: Tensor) -> Tensor:
        return _attend((t, t, t), heads, weights, hidden)[0]

    def feed(t: Tensor) -> Tensor:
        return linear((gelu if use_gelu else torch.relu)(linear(t, up, up_bias)), down, down_bias)

    def norm(t: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return layer_norm(t, (width,), weight, bias, eps)

    if norm_first:
        x = x + attend(norm(x, weight_1, bias_1))
        return x + feed(norm(x, weight_2, bias_2))
    x = norm(x + attend(x), weight_1, bias_1)
    return norm(x + feed(x), weight_2, bias_2)
