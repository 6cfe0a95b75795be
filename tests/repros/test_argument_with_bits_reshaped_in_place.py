"""An argument with the negative bit that a graph reshaped in place kept its shape."""

import pytest
import torch

import firebrick
from firebrick.errors import LoweringError


def reshaped(x):
    x.unsqueeze_(0)
    return x + 1


@pytest.mark.filterwarnings("ignore")
def test_argument_with_the_negative_bit():
    x, y = (torch._neg_view(torch.ones(3, 2)) for _ in range(2))
    got, want = firebrick.compile(reshaped, options={"strict": False})(x), reshaped(y)
    assert x.shape == y.shape == got.shape == want.shape
    assert torch.equal(got, want)
    with pytest.raises(LoweringError, match="another view"):
        firebrick.compile(reshaped, options={"strict": True})(torch._neg_view(torch.ones(3, 2)))


def test_views_of_an_argument_are_reshaped_in_the_graph():
    def function(x):
        y = x.detach()
        y.unsqueeze_(0)
        return y + 1

    for x in (torch.ones(3, 2), torch._neg_view(torch.ones(3, 2))):
        assert torch.equal(firebrick.compile(function, options={"strict": True})(x), function(x))
