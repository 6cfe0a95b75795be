"""A sum over dimensions of one element was that element, so that -0.0 stayed -0.0 where eager's sum is 0.0."""

import pytest
import torch

import firebrick

FUNCTIONS = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.neg().mean(-2),
    "all": lambda x: x[:, :1].sum(),
    "cumsum": lambda x: x.cumsum(0),
    "single": lambda x: x[0, 0].cumsum(0),
    "angle": lambda x: torch.atan2(x.sum(0), x.sum(0)),
}


@pytest.mark.compiler
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sign_of_zero_is_eagers(name, dtype):
    x = torch.tensor([[-0.0, 0.0, -1.5, -0.0, 2.0, 0.0, -0.0, 3.0, -0.0]], dtype=dtype)
    wanted, found = (run(x) for run in (FUNCTIONS[name], firebrick.compile(FUNCTIONS[name])))
    torch.testing.assert_close(found, wanted)
    assert torch.equal(torch.signbit(wanted), torch.signbit(found))
