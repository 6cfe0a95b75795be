"""A tensor that was written and then squeezed in place lent its new shape to the call that had made it."""

import pytest
import torch
from same import same


@pytest.mark.compiler
@pytest.mark.parametrize("shape", [(1,), (2, 1)])
def test_squeeze_after_a_write(shape):
    def gathered(x):
        y = torch.gather(x, -1, torch.zeros(shape, dtype=torch.int64))
        y.add_(x)
        return y.squeeze_(-1)

    same(gathered, torch.randn(shape))


@pytest.mark.compiler
@pytest.mark.parametrize("shape", [(), (2,), (3, 4)])
def test_quantile(shape):
    same(lambda x: (x.quantile(0.5), x.nanquantile(torch.tensor([0.1, 0.7]), dim=-1)), torch.randn(shape))
