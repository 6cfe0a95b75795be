"""`masked_scatter` gives rows one behind the other, however its arguments lie; ours lay as the arguments did."""

import pytest
import torch

import firebrick


def fn(x, mask, source):
    return torch.masked_scatter(x, mask, source)


@pytest.mark.parametrize("strides", [(1, 5), (2, 11), (5, 1), (1, 0)])
def test_rows_lie_one_behind_the_other(strides):
    x = torch.randn(60).as_strided((5, 5), strides)
    mask, source = torch.rand(60).as_strided((5, 5), strides) > 0.5, torch.randn(5, 5)
    want = fn(x, mask, source)
    made = firebrick.compile(fn)(x, mask, source)
    assert made.stride() == want.stride() == (5, 1)
    assert torch.equal(made, want)
