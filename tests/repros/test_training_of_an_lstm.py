"""Training an LSTM on CPU ran uncompiled, and raised where graphs are strict: its kernel looks at grad mode."""

import copy

import torch
from torch import nn

import firebrick


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(4, 5, 2, bidirectional=True), nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0]).tanh()


def test_a_step_of_training_is_compiled():
    torch.manual_seed(0)
    plain, x = Model(), torch.randn(3, 2, 4)
    ours = copy.deepcopy(plain)
    before = firebrick.graphs_compiled()
    firebrick.compile(ours, fullgraph=True, options={"strict": True})(x).square().sum().backward()
    assert firebrick.graphs_compiled() == before + 1
    plain(x).square().sum().backward()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
