"""`torch.bernoulli(x, 0.5)` has no derivative, which eager mode says in the backward: compiling it raised at once."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("function", [lambda x: torch.bernoulli(x, 0.5) * x, lambda x: x.bernoulli(0.5)])
def test_the_backward_raises(function):
    compiled = firebrick.compile(function, options={"strict": True})
    outcomes = []
    for run in (compiled, function):
        torch.manual_seed(0)
        x = torch.linspace(0, 1, 6).requires_grad_()
        outcomes.append(run(x))
        with pytest.raises(RuntimeError, match="derivative for aten::bernoulli is not implemented"):
            outcomes[-1].sum().backward()
    torch.testing.assert_close(*[y.detach() for y in outcomes])


def test_probabilities_have_gradients():
    compiled = firebrick.compile(lambda x: torch.bernoulli(x) * x, options={"strict": True})
    x = torch.linspace(0, 1, 6).requires_grad_()
    compiled(x).sum().backward()
    assert set(x.grad.tolist()) <= {0.0, 1.0}
