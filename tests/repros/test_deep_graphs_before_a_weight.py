"""Whether a matmul's input is constant was asked by recursion, which a chain of a thousand ops exceeded."""

import pytest
import torch
from torch import nn

import firebrick


class Deep(nn.Module):
    def __init__(self, constant):
        super().__init__()
        self.layer, self.constant = nn.Linear(8, 8), constant
        self.start = nn.Buffer(torch.linspace(0, 1, 8).repeat(4, 1))

    def forward(self, x):
        y = self.start if self.constant else x
        for _ in range(600):
            y = torch.sin(y) + 1
        return self.layer(x + y)


@pytest.mark.compiler
@pytest.mark.parametrize("constant", [False, True])
def test_a_long_chain_before_a_linear_layer(constant):
    model, x = Deep(constant), torch.randn(4, 8)
    with torch.no_grad():
        out = firebrick.compile(model, fullgraph=True, options={"cache": False})(x)
        torch.testing.assert_close(out, model(x))
