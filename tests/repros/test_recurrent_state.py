"""A module that replaces a tensor of its own at every call was compiled for each of them, until it ran uncompiled."""

import pytest
import torch
from torch import nn

import firebrick


class Recurrent(nn.Module):
    def __init__(self, buffer):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))
        if buffer:
            self.register_buffer("state", torch.zeros(1, 4))
            self.register_buffer("last", torch.zeros(1, 4))
        else:
            self.state, self.last = torch.zeros(1, 4), torch.zeros(1, 4)

    def forward(self, x):
        self.state = torch.tanh(self.layer(x) + self.state * self.scale)
        self.last = x
        return self.state - self.last


@pytest.mark.parametrize("buffer", [False, True])
def test_a_state_that_each_call_replaces(buffer):
    torch.manual_seed(0)
    model, plain = Recurrent(buffer), Recurrent(buffer)
    plain.load_state_dict(model.state_dict())
    compiled = firebrick.compile(model)
    before = firebrick.graphs_compiled()
    with torch.no_grad():
        for _ in range(12):
            x = torch.randn(1, 4)
            torch.testing.assert_close(compiled(x), plain(x))
    assert firebrick.graphs_compiled() - before <= 2
    model.scale = torch.full((4,), 3.0)
    plain.scale = torch.full((4,), 3.0)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(1, 4)
            torch.testing.assert_close(compiled(x), plain(x))
