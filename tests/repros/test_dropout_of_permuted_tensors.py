"""Dropout of a tensor that lies in another order than its dimensions dropped other elements than eager mode."""

import pytest
import torch
import torch.nn.functional as F

import firebrick


def parts(x):
    whole = torch.zeros(7, 18)
    whole[:, ::2].t().bernoulli_(0.5)
    return whole


FILLS = {
    "transposed": lambda x: F.dropout(x.t(), 0.5),
    "written": lambda x: F.dropout((x * 2).t(), 0.5, inplace=True),
    "permuted": lambda x: F.dropout(x.view(7, 3, 3).permute(2, 0, 1), 0.5),
    "channels last": lambda x: F.dropout(x.view(1, 7, 3, 3).to(memory_format=torch.channels_last), 0.5),
    "alpha": lambda x: F.alpha_dropout(x.t(), 0.5, training=True),
    "in place": lambda x: torch.empty_like(x.t()).bernoulli_(0.3),
    "by probabilities": lambda x: torch.empty_like(x.t()).bernoulli_(x.t().sigmoid()),
    "by probabilities that lie otherwise": lambda x: torch.empty(9, 7).bernoulli_(x.t().sigmoid()),
    "by a row": lambda x: torch.empty_like(x.t()).bernoulli_(x[:, 0].sigmoid()),
    "a part of memory": parts,
}


@pytest.mark.compiler
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fill", FILLS)
def test_the_same_elements_are_drawn(fill, grad):
    torch.manual_seed(0)
    x = torch.randn(7, 9, requires_grad=grad)
    found = []
    for run in (firebrick.compile(FILLS[fill]), FILLS[fill]):
        torch.manual_seed(1)
        result = run(x)
        grads = torch.autograd.grad(result.sum(), x) if result.requires_grad else ()
        found.append((result, *grads))
    for mine, plain in zip(*found, strict=True):
        assert mine.stride() == plain.stride()
        torch.testing.assert_close(mine, plain)
