"""A number divides by its inverse on a GPU, as in eager mode there: quotients were off by a last bit."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "targets" / "cuda"))

from interpreted import AVAILABLE  # noqa: E402

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_a_number_divides_by_its_inverse_as_in_eager_kernels_of_a_gpu(dtype):
    from tile_agree import run_interpreted

    x = torch.randn(900).to(dtype)
    wide = x if dtype == torch.float64 else x.float()
    (made, third, all_), _ = run_interpreted(lambda x: (x / 49.0, x / 0.3, x.sum() / 1e-40), x)
    assert torch.equal(made, (wide * (1 / wide.new_tensor(49.0))).to(dtype))
    assert torch.equal(third, (wide * (1 / wide.new_tensor(0.3))).to(dtype))
    assert all_.abs() > 1e38 or dtype == torch.float16
