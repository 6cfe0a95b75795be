import pytest
import torch
from torch._subclasses import FakeTensorMode

from firebrick.trace.decompositions import decompositions


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_statistics_of_a_batch_norm_of_short_numbers_are_float32_on_a_gpu(dtype, device):
    rule = decompositions()[torch.ops.aten.native_batch_norm.default]
    with FakeTensorMode():
        x, weight, bias = (torch.empty(size, dtype=dtype, device=device) for size in ((5, 4, 3), (4,), (4,)))
        out, mean, rstd = rule(x, weight, bias, None, None, True, 0.1, 1e-5)
    kept = torch.float32 if device == "cuda" else dtype
    assert (out.dtype, mean.dtype, rstd.dtype) == (dtype, kept, kept)
