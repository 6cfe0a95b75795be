"""Whether a matmul's argument is constant was asked through all calls before it: deep graphs went to eager kernels."""

import torch
from torch import nn

import firebrick


def test_a_matmul_behind_a_thousand_calls_is_compiled():
    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.scale = nn.Linear(8, 8), nn.Parameter(torch.full((8,), 0.3))

        def forward(self, x):
            for k in range(1000):
                x = x * self.scale + (x if k % 2 else 1)
            return self.last(x) + self.last(x.sin())

    model, x = Deep().eval(), torch.rand(2, 8)
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(model)(x), model(x))
