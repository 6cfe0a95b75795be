"""Under `no_grad`, a `torch.autograd.Function` whose `forward` returns its argument gave that very object."""

import pytest
import torch

import firebrick


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Row(Same):
    @staticmethod
    def forward(ctx, x):
        return x[0]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("function", [Same, Row])
def test_the_result_is_another_tensor(function, mode):
    def f(x):
        h = x * 2
        with mode():
            y = function.apply(h)
        return y is h, y._is_view(), y.requires_grad, y.tolist()

    for x in (torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)):
        assert firebrick.compile(f, backend="eager")(x) == f(x)
