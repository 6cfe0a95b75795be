"""Two results of one node, of which one alone is made of a third: the graph of second gradients of the other was called
with the third, which it does not take (TypeError)."""

import torch

import firebrick


def function(x, w):
    y = x.sin() * 2
    shared = w.exp()
    return y, (y * shared).sum(), shared.cos().sum()


def outcome(function):
    x, w = (torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_() for _ in range(2))
    y, _, other = function(x, w)
    (first,) = torch.autograd.grad(other, w, create_graph=True)
    return [first, *torch.autograd.grad(first.sin().sum(), [w, y, x], allow_unused=True)]


def test_second_gradients():
    for mine, plain in zip(outcome(firebrick.compile(function, backend="aot_eager")), outcome(function), strict=True):
        assert (mine is None) == (plain is None)
        if plain is not None:
            torch.testing.assert_close(mine, plain)
