"""Gradients of gradients of a graph that writes to a buffer and reads what it wrote (an average that moves) raised: they
were computed from the graph's inputs, among which the buffer was no longer what it had been."""

import pytest
import torch
from torch import nn

import firebrick


class Centered(nn.Module):
    def __init__(self, features=4):
        super().__init__()
        self.layer = nn.Linear(features, features, dtype=torch.float64)
        self.register_buffer("average", torch.zeros(features, dtype=torch.float64))

    def forward(self, x):
        h = self.layer(x).sin()
        self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return ((h - self.average) * self.average.exp()).square()


class Reading(Centered):
    def forward(self, x):
        before = self.average.exp()
        return super().forward(x) * before


def steps(run, module):
    found = []
    for number in range(3):
        x = (torch.arange(12, dtype=torch.float64).view(3, 4) / 7 + number).requires_grad_()
        y = run(x)
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.sum() + first.square().sum()).backward()
        found += [y.detach(), first.detach(), x.grad, *[p.grad.clone() for p in module.parameters()]]
        found.append(module.average.clone())
    return found


def made(cls):
    torch.manual_seed(0)
    return cls()


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("firebrick", marks=pytest.mark.compiler)])
def test_second_gradients(backend):
    module, plain = made(Centered), made(Centered)
    mine = steps(firebrick.compile(module, backend=backend), module)
    for one, other in zip(mine, steps(plain, plain), strict=True):
        torch.testing.assert_close(one, other)


def test_what_it_held_before_is_still_an_error():
    module = made(Reading)
    with pytest.raises(Exception, match="held before the graph wrote to it"):
        steps(firebrick.compile(module, backend="aot_eager"), module)


def test_a_later_write_is_an_error():
    module = made(Centered)
    compiled = firebrick.compile(module, backend="aot_eager")
    x = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    y = compiled(x)
    compiled(x.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
