"""Calls that give sparse gradients failed in the backward; they run apart from the graphs around them."""

import pytest
import torch
from torch import nn

import firebrick


def outcome(compile, make, *args):
    torch.manual_seed(0)
    module = make()
    call = compile(module)
    for _ in range(2):
        call(*args).square().sum().backward()
    return [p.grad for p in module.parameters()]


class Gathers(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))

    def forward(self, i):
        return (self.table * 1).sin().mul(2) + self.table.gather(1, i, sparse_grad=True).sum()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4, sparse=True)

    def forward(self, i):
        return self.table(i).tanh() * self.table.weight.sum()


INDEX = torch.tensor([[1, 2, 1, 0]])


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Embedding(9, 4, sparse=True),
        lambda: nn.Embedding(9, 4, sparse=True, padding_idx=1, max_norm=0.5),
        lambda: nn.EmbeddingBag(9, 4, sparse=True),
        lambda: nn.EmbeddingBag(9, 4, sparse=True, mode="sum"),
        lambda: nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)),
        Gathers,
        Twice,
    ],
)
def test_gradients_are_laid_out_as_eager_s(make):
    want, got = (outcome(compile, make, INDEX) for compile in (lambda m: m, firebrick.compile))
    for mine, other in zip(got, want, strict=True):
        assert mine.layout == other.layout
        torch.testing.assert_close(mine.to_dense(), other.to_dense())


def test_layers_behind_are_compiled():
    module = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3), nn.Tanh())
    before = firebrick.graphs_compiled()
    firebrick.compile(module)(INDEX).sum().backward()
    assert firebrick.graphs_compiled() > before


@pytest.mark.parametrize("optimizer", [torch.optim.SparseAdam, torch.optim.SGD])
def test_a_step_inside(optimizer):
    losses = []
    for compile in (lambda f: f, firebrick.compile):
        torch.manual_seed(0)
        module = nn.Embedding(9, 4, sparse=True)
        steps = optimizer(module.parameters(), lr=0.1)

        def step(i, module=module, steps=steps):
            steps.zero_grad()
            loss = module(i).square().sum()
            loss.backward()
            steps.step()
            return loss

        call = compile(step)
        losses.append([call(INDEX).item() for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1])
