"""Which form a convolution takes on a GPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from firebrick.targets.base import CALL, Choice

_FEW_STEPS = 32_000_000
"""Products of a convolution with one channel a group up to which loops are quicker than the library's kernel, which
takes 3 us for windows of 3 x 3, 6 for 5 x 5 and 11 for 7 x 7 however small the image is. On an H100, us, the library's
and loops': 96 x 56 x 56, 7 x 7: 14.8, 6.3; 384 x 14 x 14, 7 x 7: 11.8, 4.4; 672 x 14 x 14, 5 x 5: 6.1, 3.8; a batch
of 32 of the second: 23, 32."""
_LOOPED = 64
"""Elements of the largest window that one thread folds."""
_FEW_CHANNELS = 16
_SMALL = 8 << 20
"""Bytes of an image whose copy in the order of patches costs less than the library loses by its window. On an H100, us,
the library's, the copy and the matmul: 3 x 224 x 224 by 16 x 16: 63, 2.8, 4.8, a batch of 32 of it 270, 13, 14;
192 x 28 x 28 by 2 x 2: 8.3, 2.7, 4.1; a batch of 32 of 96 x 56 x 56 by 2 x 2: 35, 27, 11."""


def convolution_form(x: Tensor, weight: Tensor, *how: Any) -> Choice:
    """The library convolves images in short types channels last, and would turn them around at each call; there it adds
    a vector and another image, and cuts off below zero, on the way."""
    stride, padding, dilation, groups, out = how
    if out.dtype not in (torch.float16, torch.bfloat16) or out.dim() != 4:
        return CALL
    sizes: list[Any] = [*x.shape, *weight.shape, *out.shape]
    if not all(isinstance(n, int) for n in sizes):
        return CALL
    window = list(weight.shape[2:])
    if groups == weight.shape[0] == x.shape[1] and 1 < math.prod(window) <= _LOOPED:
        return Choice("loops" if out.numel() * math.prod(window) <= _FEW_STEPS else "call", 0.5)
    beside = list(stride) == window == [window[0]] * 2 and window[0] > 1 and not any(padding)
    whole = groups == 1 and set(dilation) == {1} and not any(n % window[0] for n in x.shape[2:])
    copied = x.shape[1] <= _FEW_CHANNELS or x.numel() * x.element_size() <= _SMALL
    return Choice("patches" if beside and whole and copied else "fused", 0.5)
