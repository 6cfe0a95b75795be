"""Fake kernels refuse `bool << 1`, which eager computes as int64: the whole graph was left to eager."""

import pytest
import torch
from same import same


@pytest.mark.compiler
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_shift_of_whole_numbers(dtype):
    x = torch.arange(6).to(dtype)
    same(lambda x: (x << 1, x >> 1, x << torch.tensor(2)), x, fullgraph=True)
