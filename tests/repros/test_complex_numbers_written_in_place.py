"""Writing to a complex argument failed with a KeyError; the angle of complex numbers is contiguous in eager mode."""

import pytest
import torch

import firebrick


@pytest.mark.filterwarnings("ignore")
def test_write_to_a_complex_argument():
    x, y = (torch.ones(3, dtype=torch.complex64) for _ in range(2))
    compiled = firebrick.compile(lambda x: x.mul_(2), options={"strict": True})
    torch.testing.assert_close(compiled(x), y.mul_(2))
    torch.testing.assert_close(x, y)


@pytest.mark.filterwarnings("ignore")
def test_layout_of_an_angle():
    x = torch.randn(4, 3, dtype=torch.complex64).t()
    for z in (x, x.conj(), x.real):
        got, want = firebrick.compile(torch.angle, options={"strict": False})(z), torch.angle(z)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
