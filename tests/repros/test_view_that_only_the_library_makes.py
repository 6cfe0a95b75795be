"""A view that no rule covers was made by the library on an argument, and its memory was the argument's."""

import torch
from same import same


def test_unfold_of_a_number():
    same(lambda x: torch.ops.aten.unfold_copy(x, 0, 1, 1), torch.tensor(3.0))


def test_bytes_of_a_temporary():
    def fn(x):
        y = x * 2
        z = y.view(torch.int32)
        return z + 1, y.sum(), z

    same(fn, torch.randn(6, 4))


def test_wider_numbers_of_a_temporary():
    same(lambda x: (x * 2).view(torch.float64), torch.randn(6, 4))
