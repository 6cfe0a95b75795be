"""Capture took a pool of rows to lie as with gradients: a view that eager refuses was captured, and failed in a trace."""

import pytest
import torch
import torch.nn.functional as F

import firebrick


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("pool", [F.max_pool1d, torch.max_pool1d])
def test_a_view_that_eager_refuses(pool, dynamic):
    def f(x):
        return pool(x.transpose(1, 2), 3, 1, 1).transpose(1, 2).view(-1)

    x = torch.randn(5, 17, 4)
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        f(x)
    with pytest.raises(RuntimeError, match="view size is not compatible") as raised:
        firebrick.compile(f, dynamic=dynamic)(x)
    assert raised.type is RuntimeError


def test_strides_are_told_as_eagers():
    def f(x):
        y = F.max_pool1d(x.transpose(1, 2), 3)
        return y, y.stride()

    for x in (torch.randn(5, 17, 4), torch.randn(5, 17, 4, requires_grad=True)):
        assert firebrick.compile(f, dynamic=True)(x)[1] == f(x)[1]
