"""Second gradients through a Function whose backward clips its gradient were wrong: it clipped the gradients of the first
and of the second order one by one, where eager mode adds them and clips the sum."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function, grad

import firebrick


class Clipped(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-0.1, 0.1) * 2


class Halves(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, one, two):
        (x,) = ctx.saved_tensors
        return (one * x.cos() - two * x.sin()).sign() * 0.3


class Own(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g.clamp(-0.1, 0.1) * (1 - y * y)


class Scaled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where(x > 0, 2 * x * g, torch.zeros_like(g)) - (g * x).mean()


def one(x, w):
    return F.silu(Clipped.apply((x @ w).sin()))


def two(x, w):
    return Clipped.apply(F.silu(Clipped.apply((x @ w).sin())) @ w).cos()


def last(x, w):
    return Clipped.apply((x @ w).sin())


def shown(x, w):
    y = (x @ w).sin()
    return F.silu(Clipped.apply(y)).square().sum() + y.sum()


def several(x, w):
    a, b = Halves.apply((x @ w).sin())
    return F.silu(a * b)


def linear(x, w):
    y = x @ w
    return F.silu(Scaled.apply(y.sin())) + y


def passed_by(x, w):
    y = (x @ w).sin()
    return F.silu(Clipped.apply(y)) + y


def reads_its_result(x, w):
    return F.silu(Own.apply((x @ w).sin()))


def hooked(x, w):
    y = (x @ w).sin()
    y.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return F.silu(y)


def scaled_by_a_hook(x, w):
    y = (x @ w).sin()
    y.register_hook(lambda g: g * 0.5)
    return F.silu(y)


def second(fn):
    torch.manual_seed(0)
    x, w = [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    (g,) = grad(fn(x, w).square().sum(), x, create_graph=True)
    return [g, *grad(g.sin().sum(), [x, w])]


@pytest.mark.compiler
@pytest.mark.parametrize("backend", ["firebrick", "aot_eager"])
@pytest.mark.parametrize("fn", [one, two, last, several, linear, scaled_by_a_hook])
def test_the_sum_is_clipped(fn, backend):
    for mine, plain in zip(second(firebrick.compile(fn, backend=backend)), second(fn), strict=True):
        torch.testing.assert_close(mine, plain)


@pytest.mark.parametrize("fn", [passed_by, shown, reads_its_result, hooked])
def test_where_the_sum_is_not_known_it_is_an_error(fn):
    torch.manual_seed(0)
    x, w = [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    compiled = firebrick.compile(fn, backend="aot_eager")
    for mine, plain in zip(grad(compiled(x, w).sum(), [x, w]), grad(fn(x, w).sum(), [x, w]), strict=True):
        torch.testing.assert_close(mine, plain)
    with pytest.raises(RuntimeError, match="not linear"):
        grad(compiled(x, w).sum(), x, create_graph=True)
