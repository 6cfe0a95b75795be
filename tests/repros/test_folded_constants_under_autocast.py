"""Constants that are computed at the first call were computed under the caller's autocast: a product of two weights where
the graph switches it off came out in bfloat16, and its bytes were read as float32."""

import pytest
import torch
from torch import nn

import firebrick


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.randn(64, 64))

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return x @ (self.a @ self.b).relu()


@pytest.mark.parametrize("outside", [torch.bfloat16, torch.float16])
def test_product_of_weights(outside):
    torch.manual_seed(0)
    module, x = Product(), torch.randn(8, 64)
    with torch.no_grad(), torch.autocast("cpu", outside):
        want, got = module(x), firebrick.compile(module)(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)
