"""`torch.jit.trace` of a compiled function that records gradients crashed, or wrote what compiles into the trace."""

import pytest
import torch
from torch import nn

import firebrick


def function(x):
    return torch.sin(x) + 1


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("make", [lambda: function, lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())])
def test_trace(make, grad, called):
    torch.manual_seed(0)
    original = make()
    compiled = firebrick.compile(original)
    example, other = torch.ones(2, 4, requires_grad=grad), torch.full((2, 4), 2.0)
    if called:
        compiled(example)
    with torch.set_grad_enabled(grad):
        traced = torch.jit.trace(compiled, example)
    torch.testing.assert_close(traced(other), original(other))
    torch.testing.assert_close(compiled(other), original(other))
