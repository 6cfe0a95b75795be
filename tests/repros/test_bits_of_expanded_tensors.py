"""What is made of an expanded tensor with a negative or conjugate bit had other strides than in eager mode."""

import pytest
import torch

import firebrick

GIVEN = {
    "negative": lambda: torch._neg_view(torch.randn(1, 1, 1).expand(1, 4, 8)),
    "in part": lambda: torch._neg_view(torch.randn(3, 1, 8).expand(3, 4, 8)),
    "conjugate": lambda: torch.randn(2, 1, 3, dtype=torch.complex64).expand(2, 4, 3).conj(),
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_strides_are_those_of_eager_mode(given):
    def double(x):
        return x.transpose(1, 2) * 2

    x = given()
    result, expected = firebrick.compile(double)(x), double(x)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected)
