"""Two classes of autograd functions had one name in graphs, so that the second was given what was compiled for the first."""

import pytest
import torch

import firebrick


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


@pytest.mark.compiler
@pytest.mark.parametrize(("function", "factor"), [(Double, 2), (Triple, 3)])
def test_each_gives_its_own_result(function, factor):
    x = torch.ones(3, requires_grad=True)
    y = firebrick.compile(lambda x: function.apply(x))(x)
    y.sum().backward()
    assert y.tolist() == x.grad.tolist() == [factor] * 3


def test_code_of_the_graph_runs():
    def backend(gm, inputs):
        return torch.fx.GraphModule(gm, gm.graph).forward

    x = torch.ones(3, requires_grad=True)
    y = torch.zeros(3)
    firebrick.compile(lambda x, y: Double.apply(x) + y.add_(1), backend=backend, fullgraph=True)(x, y)
    assert y.tolist() == [1.0] * 3
