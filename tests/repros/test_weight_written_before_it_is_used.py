"""A parameter written to under `no_grad` and used with gradients in the same graph made the whole graph run eagerly."""

import torch
from torch import nn

import firebrick


def run(function, weight):
    x = torch.arange(9.0).reshape(3, 3).requires_grad_()
    loss = function(weight, x)
    loss.backward()
    return loss.detach(), weight.detach().clone(), weight.grad, x.grad


def test_gradients_are_those_at_the_new_values():
    def step(weight, x):
        with torch.no_grad():
            weight.copy_(x.t() / 9)
            weight.clamp_(0.2, 0.8)
        return (torch.sin(weight) @ x).sum()

    want = run(step, nn.Parameter(torch.ones(3, 3)))
    got = run(firebrick.compile(step, fullgraph=True, options={"strict": True}), nn.Parameter(torch.ones(3, 3)))
    for mine, other in zip(got, want, strict=True):
        torch.testing.assert_close(mine, other)
