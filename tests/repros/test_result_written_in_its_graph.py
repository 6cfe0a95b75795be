"""A result that its graph writes to (`y[2] = y[3]`) had no gradient of a loss that is computed from it afterwards; nor
had results that are made of one value beside each other, or of a result that is used again behind them."""

import pytest
import torch

import firebrick


def in_part(x, w):
    y = (x @ w).sin() * 2
    y[2] = y[3] * 0.25
    return y, y.exp().sum()


def through_a_view(x, w):
    y = (x @ w).sin()
    y.t()[2:4].copy_(y.t()[:2] * 0.7)
    return y, (y.view(-1) * 2).exp().sum()


def by_what_is_made_of_it(x, w):
    y = (x @ w).sin()
    y.add_(y.sum())
    return y, (y * 2).cos().sum()


def to_another_result(x, w):
    y = (x @ w).sin()
    z = y * 3
    z.mul_(y)
    z[0] = 1
    return y, y.sin().sum() + z.sum(), z


def beside_each_other(x, w):
    h = (x @ w).sin()
    a, b = h.sin(), h.cos()
    return (a * b).sum(), a, b


def used_again(x, w):
    encoded = (x @ w).sin()
    hidden = (encoded + encoded.cos()) * w.sum()
    return (hidden * encoded).cos().sum(), encoded, hidden


def outcome(function):
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(4, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    results = function(x, w)
    rows = [*results, w]
    first = [g for r in results for g in torch.autograd.grad(r.sin().sum(), rows, None, True, True, allow_unused=True)]
    total = sum(g.square().sum() for g in first if g is not None)
    return [*first, *torch.autograd.grad(total, rows, allow_unused=True)]


@pytest.mark.parametrize(
    "function",
    [in_part, through_a_view, by_what_is_made_of_it, to_another_result, beside_each_other, used_again],
)
def test_gradients_between_results(function):
    for mine, plain in zip(outcome(firebrick.compile(function)), outcome(function), strict=True):
        assert (mine is None) == (plain is None)
        torch.testing.assert_close(mine, plain)


def test_a_view_that_was_made_before_the_write_is_right_for_the_inputs():
    def function(x, w):
        y = (x @ w).sin()
        row = y[1]
        y[2] = y[3] * 0.25
        return y, y.sin().sum() + row.sum()

    found = []
    for run in (function, firebrick.compile(function)):
        w = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()
        y, loss = run(w.detach(), w)
        (loss + y.sum()).backward()
        found.append(w.grad)
    torch.testing.assert_close(*found)
