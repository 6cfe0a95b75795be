"""Second gradients of `torch.trace` were left to eager mode: its derivative's derivative looks for equal indices."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("trace", [torch.trace, torch.Tensor.trace])
def test_trace(trace):
    def function(x):
        return trace(x @ x).sin()

    def second(f):
        x = torch.linspace(-1, 1, 16).double().view(4, 4).requires_grad_()
        y = f(x)
        (first,) = torch.autograd.grad(y, x, create_graph=True)
        return y, first, *torch.autograd.grad(first.square().sum(), x)

    torch.testing.assert_close(second(firebrick.compile(function, fullgraph=True)), second(function))
