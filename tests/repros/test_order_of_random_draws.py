"""Two draws in one graph changed places where the loops around the first could run with those behind the second."""

import pytest
import torch
from torch.nn import functional as F

import firebrick


def between(a):
    return F.dropout(a.sin(), 0.5), F.dropout(a, 0.5)


def three(a):
    b = F.dropout(a.sin() + 1, 0.5)
    c = torch.rand_like(a) * a
    return b, c, torch.bernoulli(b.abs().clamp(0, 1)) + a


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [between, three])
def test_draws_keep_their_order(function, grad):
    a = torch.linspace(-1, 1, 12).reshape(3, 4)
    compiled = firebrick.compile(function, fullgraph=True)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = function(a.clone().requires_grad_(grad))
        torch.manual_seed(seed)
        for result, wanted in zip(compiled(a.clone().requires_grad_(grad)), expected, strict=True):
            torch.testing.assert_close(result, wanted)
