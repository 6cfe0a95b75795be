"""A list operation that writes one tensor twice wrote it once."""

import torch
from same import same


def test_both_writes_happen():
    def fn(x):
        y = x * 2
        torch._foreach_mul_([y, y], 2)
        return y

    same(fn, torch.randn(5), strict=False)


def test_a_write_is_read_by_the_next():
    def fn(x):
        a, b = x * 2, x + 1
        torch._foreach_add_([a, b], [x, a])
        return a, b

    same(fn, torch.randn(5), strict=False)
