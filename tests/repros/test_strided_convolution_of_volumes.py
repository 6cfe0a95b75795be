"""A strided convolution of one volume fell back to eager: what is read of it has gaps, and was stored in another order."""

import pytest
import torch
from torch import nn

from repros.same import same


@pytest.mark.parametrize("stride", [2, (2, 1, 1)])
@pytest.mark.parametrize("batch", [1, 2])
def test_it_is_compiled(stride, batch):
    torch.manual_seed(0)
    convolution = nn.Conv3d(16, 32, 3, stride=stride, padding=1)
    with torch.no_grad():
        same(lambda x: convolution(x).relu(), torch.randn(batch, 16, 8, 16, 16))
