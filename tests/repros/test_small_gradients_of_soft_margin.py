"""Small gradients of soft_margin_loss were zero: PyTorch's decomposition takes 1 from a sigmoid."""

import pytest
import torch
from torch.nn import functional as F

import firebrick


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradients_far_from_the_margin(reduction):
    x, target = torch.linspace(-40, 40, 9, requires_grad=True), torch.ones(9)

    def loss(x):
        return F.soft_margin_loss(x, target, reduction=reduction).sum()

    want, got = (torch.autograd.grad(f(x), x)[0] for f in (loss, firebrick.compile(loss)))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=0)
