"""Second gradients of a model with equal layers reached other layers' parameters: the first gradients, computed by a
graph of their own, came in the order of the whole graph, and were taken in that of the shortened one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick


class Layer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.down(F.gelu(self.up(x))))


class Model(nn.Module):
    def __init__(self, layers, frozen=(), tied=()):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(8, 8)
        for i in frozen:
            self.layers[i].requires_grad_(False)
        for i in tied:
            self.layers[i].up.weight = self.head.weight

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x).square().sum()


CASES = {
    "plain": {},
    "a frozen layer": {"frozen": [4]},
    "frozen first layers": {"frozen": [0, 1, 2]},
    "a tied weight": {"tied": [5]},
    "tied weights": {"tied": [4, 6]},
}


@pytest.mark.compiler
@pytest.mark.parametrize("case", CASES)
def test_each_gradient_is_of_its_own_parameter(case):
    torch.manual_seed(0)
    model = Model(8, **CASES[case])
    x = torch.randn(4, 8, requires_grad=True)
    compiled, found = firebrick.compile(model), []
    leaves = [x, *[p for p in model.parameters() if p.requires_grad]]
    for run in (compiled, model):
        first = torch.autograd.grad(run(x), leaves, create_graph=True)
        total = sum((g.sin() * (i + 1)).sum() for i, g in enumerate(first))
        found.append([*first, *torch.autograd.grad(total, leaves)])
    for mine, plain in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain, rtol=1e-3, atol=1e-4)
