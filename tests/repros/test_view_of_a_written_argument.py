"""A view taken after a write to an argument with an offset in its storage was read at twice the offset; a tensor
transposed in place was seen untransposed by the operations inside of a later one."""

import torch
from same import same

import firebrick


def test_view_after_a_write():
    def fn(x):
        x.diagonal().fill_(3)
        x.view(1, 3, 7).neg_()
        row = x.select(0, 0).ravel()
        row[2:] = -1
        return row / 2, torch.atan2(x, row)

    x = torch.randn(5, 7)[2:]
    assert x.storage_offset() == 14
    plain, ours = x.clone(), torch.randn(5, 7)[2:].copy_(x)
    for a, b in zip(fn(plain), firebrick.compile(fn)(ours), strict=True):
        torch.testing.assert_close(b, a)
    torch.testing.assert_close(ours, plain)


def test_transposed_in_place():
    def fn(x):
        y = torch.expm1(x)
        y.swapaxes_(0, -1)
        return y.ravel() * 2, y

    same(fn, torch.randn(2, 5, 3))
