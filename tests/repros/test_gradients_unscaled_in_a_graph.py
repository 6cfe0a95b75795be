"""A graph with `GradScaler.unscale_` could not be traced: its op returns a list within a tuple."""

import pytest
import torch

import firebrick

unscale = torch._amp_foreach_non_finite_check_and_unscale_


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("bad", [None, torch.inf, torch.nan])
@pytest.mark.parametrize("numerics", ["default", "eager"])
def test_unscale(dtype, bad, numerics):
    def run(call):
        gradients = [torch.linspace(-3, 3, n).to(dtype) for n in (5, 1)]
        if bad is not None:
            gradients[0][2] = bad
        found = torch.zeros(1)
        call(gradients, found, torch.full((1,), 1 / 3))
        return gradients, found

    want = run(lambda *args: unscale(*args))
    got = run(firebrick.compile(lambda *args: unscale(*args), options={"numerics": numerics}))
    torch.testing.assert_close(got, want, equal_nan=True)
