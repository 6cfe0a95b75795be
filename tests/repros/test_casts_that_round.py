"""A conversion to half precision in the program rounds, also where what reads it is in the same loop.

`x.to(bfloat16).float() - x`, the error of the rounding, was zero.
"""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_error_of_a_rounding_is_not_zero(dtype):
    def call(x):
        high = x.to(dtype)
        low = (x - high.float()).to(dtype)
        return (
            x - high,
            high * 2.0,
            low,
            (high.view(2, -1).t() + x.view(2, -1).t()).sum(),
            x - x.mul(3).to(dtype).float() / 3,
        )

    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    for found, wanted in zip(firebrick.compile(call, options={"cache": False})(x), call(x), strict=True):
        torch.testing.assert_close(found, wanted)
