"""Ops that write arguments were left to eager where their functional form has another name, order or result."""

import pytest
import torch
from same import same

import firebrick


@pytest.mark.compiler
def test_random_slopes_are_eagers():
    def drawn(x):
        torch.manual_seed(0)
        return torch.nn.functional.rrelu(x, training=True)

    same(lambda x: torch.nn.functional.rrelu(x), torch.randn(8), fullgraph=True)
    x = torch.arange(-4.0, 4.0)
    compiled = firebrick.compile(lambda x: torch.nn.functional.rrelu(x, training=True), options={"strict": True})
    compiled(x)
    torch.manual_seed(0)
    assert torch.equal(compiled(x), drawn(x))


@pytest.mark.compiler
def test_polygamma_in_place():
    same(lambda x: x.clone().polygamma_(1), torch.rand(5) + 1, fullgraph=True)
