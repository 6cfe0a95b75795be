"""A checkpoint with `use_reentrant=True` made its graph run on eager kernels; its function is compiled again."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import firebrick

first, second = nn.Linear(4, 4), nn.Linear(4, 4)


def block(x):
    return torch.tanh(second(x)) * x


def model(x, **options):
    return checkpoint(block, first(x), **options).sum()


@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint")
@pytest.mark.parametrize("options", [{"use_reentrant": True}, {}])
def test_gradients(options):
    outcomes = []
    for call in (model, firebrick.compile(model, options={"strict": True})):
        for layer in (first, second):
            layer.zero_grad()
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        result = call(x, **options)
        result.backward()
        outcomes.append((result.detach(), x.grad, *[p.grad for m in (first, second) for p in m.parameters()]))
    torch.testing.assert_close(outcomes[1], outcomes[0])
