"""`detach_()` was left out of the graph."""

import torch

import firebrick


def test_detached_in_place():
    def function(x):
        y = x * 2
        before = y * 3
        z = y
        y.detach_()
        return before, y + x, y, z is y, y.requires_grad, y.is_leaf

    def seen_outside(x):
        x.detach_()
        return x * 2

    for compiled in (function, firebrick.compile(function)):
        x = torch.tensor([1.0, -2.0], requires_grad=True)
        before, after, y, *rest = compiled(x)
        assert rest == [True, False, True]
        assert not y.requires_grad
        (before.sum() + after.sum()).backward()
        assert x.grad.tolist() == [7.0, 7.0]
    y = torch.ones(2, requires_grad=True) * 1
    assert not firebrick.compile(seen_outside)(y).requires_grad
    assert y.is_leaf
