"""A user's Triton kernel, for an engine of the tests."""

import torch
import triton
import triton.language as tl


@triton.jit
def _square_plus_one(source, result, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    x = tl.load(source + at, mask=at < count)
    tl.store(result + at, x * x + 1, mask=at < count)


def square_plus_one(x):
    """x * x + 1, on the current stream."""
    result = torch.empty_like(x)
    _square_plus_one[(triton.cdiv(x.numel(), 256),)](x, result, x.numel(), block=256)
    return result
