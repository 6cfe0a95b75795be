"""Looking for scans in values that share their parts took twice as long with each of them: 2**40 steps here."""

import pytest
import torch
from same import same


@pytest.mark.compiler
@pytest.mark.timeout(120)
def test_shared_values_are_looked_at_once():
    def program(x):
        y = x.sum(-1, keepdim=True)
        for _ in range(40):
            y = (y + y) * 0.5
        return y + x

    same(program, torch.randn(8, 16))
