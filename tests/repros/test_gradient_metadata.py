"""`retain_grad()` was a node of a graph whose results do not keep gradients; `is_leaf` of an argument was not guarded."""

import torch

import firebrick


def test_retained_gradient():
    def function(x):
        y = x * 2
        y.retain_grad()
        return y, (y * y).sum()

    x = torch.tensor([1.0, -2.0], requires_grad=True)
    y, loss = firebrick.compile(function)(x)
    loss.backward()
    assert y.grad.tolist() == [4.0, -8.0]


def test_is_leaf_of_an_argument():
    compiled = firebrick.compile(lambda x: (x * 2, x.is_leaf))
    leaf = torch.ones(2, requires_grad=True)
    for x in (leaf * 1, leaf, leaf * 1):
        assert compiled(x)[1] is x.is_leaf


def test_write_that_no_version_counts():
    def function(x):
        x.resize_(3, 3)
        return x.shape, x.numel()

    compiled = firebrick.compile(function)
    x = torch.ones(2, 3)
    assert compiled(x) == ((3, 3), 9)
    assert x.shape == (3, 3)
