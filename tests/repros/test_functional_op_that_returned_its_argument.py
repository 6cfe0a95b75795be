"""`torch.stack([x])` returned a view of x, since its decomposition does; eager returns memory of its own."""

import torch
from same import same


def test_stack_of_one_tensor():
    same(lambda x: torch.stack([x]), torch.randn(3, 4))


def test_write_to_a_stack_of_one_tensor():
    def fn(x):
        y = torch.stack([x])
        y.add_(1)
        return y, x + 0

    same(fn, torch.randn(3, 4))
