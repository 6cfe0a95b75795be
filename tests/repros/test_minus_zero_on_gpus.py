"""The negative of 0.0 is -0.0 in kernels for GPUs: an angle beside it was half a turn off by its sign."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "targets" / "cuda"))

from interpreted import AVAILABLE  # noqa: E402

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_negative_of_zero_has_its_sign(dtype):
    from tile_agree import run_interpreted

    x = torch.tensor([0.0, -0.0, 1.0], dtype=dtype)
    (made,), _ = run_interpreted(torch.neg, x)
    assert torch.equal(torch.signbit(made), torch.signbit(-x))
