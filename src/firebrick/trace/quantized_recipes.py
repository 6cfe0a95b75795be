"""Ops of `quantized_decomposed` whose own Python reads numbers from tensors, without that read: the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


def _quantize(x: Tensor, scale: Tensor, point: Tensor, low: int, high: int, dtype: torch.dtype) -> Tensor:
    inverse = (1.0 / scale.reshape(()).double()).float()
    steps = torch.round(x.float() * inverse) + point.reshape(()).float()
    return torch.clamp(steps, low, high).to(dtype)


def _dequantize(
    x: Tensor, scale: Tensor, point: Tensor, low: int, high: int, dtype: torch.dtype, *, out_dtype: Any = None
) -> Tensor:
    if out_dtype not in (None, torch.float32) or x.dtype is not dtype:
        return NotImplemented
    return (x.float() - point.reshape(()).float()) * scale.reshape(()).float()


def _choose(symmetric: bool) -> Callable[..., tuple[Tensor, Tensor]]:
    def choose(x: Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if x.numel() == 0 or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return NotImplemented
        least, most = x.amin(), x.amax()
        below, above = least.clamp(max=0.0), most.clamp(min=0.0)
        smallest = torch.full([1], eps, dtype=torch.float32, device=x.device)
        if symmetric:
            above = torch.maximum(-below, above)
            scale = torch.maximum((above / ((high - low) / 2)).float(), smallest)
            return scale.double(), torch.full([1], 128 if dtype is torch.uint8 else 0, device=x.device)
        scale = torch.maximum(((above - below) / float(high - low)).float(), smallest)
        point = (low - torch.round(below / scale).to(torch.int32)).clamp(low, high)
        return scale.double(), point.long()

    return choose


_NUMBERS = "quantized_decomposed::{}.tensor"
QUANTIZED: Mapping[str, Callable[..., Any]] = {
    _NUMBERS.format("quantize_per_tensor"): _quantize, _NUMBERS.format("dequantize_per_tensor"): _dequantize,
    _NUMBERS.format("choose_qparams"): _choose(False), _NUMBERS.format("choose_qparams_symmetric"): _choose(True),
}  # fmt: skip
"""Name of an op -> what it is made of; the library is defined where a program imports it."""
