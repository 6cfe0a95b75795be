"""A checkpoint in a compiled function drew another dropout mask when its backward computed it again."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import firebrick


def body(x, w):
    return F.dropout((x @ w).sin(), 0.5) * torch.rand_like(x)


def once(x, w):
    return checkpoint(body, x, w, use_reentrant=False).square().sum()


def twice(x, w):
    y = checkpoint(body, x, w, use_reentrant=False)
    return checkpoint(body, y, w, use_reentrant=False).square().sum()


@pytest.mark.parametrize("function", [once, twice])
@pytest.mark.parametrize("backend", ["firebrick", "aot_eager"])
def test_gradients(function, backend):
    compiled, rows = firebrick.compile(function, backend=backend), []
    for call in (function, compiled, compiled):
        torch.manual_seed(3)
        w = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        x = torch.ones(8, 4, requires_grad=True)
        loss = call(x, w)
        rows.append((loss, torch.autograd.grad(loss, (x, w)), torch.rand(1)))
    torch.testing.assert_close(rows[1], rows[0])
    torch.testing.assert_close(rows[2], rows[0])
