"""A compiled function dropped the tangent of a tensor that carries one: forward-mode gradients were lost."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import firebrick

X, T = torch.linspace(-1, 1, 3), torch.tensor([1.0, 2.0, 3.0])


def square(x):
    return (x * x).sin()


def broken(x):
    y = x * x
    firebrick.graph_break()
    return y.sin()


def opens_a_level(x):
    with forward_ad.dual_level():
        made = forward_ad.make_dual(x, T)
        return tuple(forward_ad.unpack_dual(square(made)))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        return x * self.scale


@pytest.mark.parametrize("called", [False, True])
@pytest.mark.parametrize("fn", [square, broken, torch.nn.functional.softplus])
def test_tangents(fn, called):
    compiled = firebrick.compile(fn)
    if called:
        compiled(X)
    with forward_ad.dual_level():
        ours, wanted = [forward_ad.unpack_dual(f(forward_ad.make_dual(X, T))) for f in (compiled, fn)]
        torch.testing.assert_close(tuple(ours), tuple(wanted))
    torch.testing.assert_close(compiled(X), fn(X))


def test_a_level_opened_in_captured_code():
    compiled = firebrick.compile(opens_a_level)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), opens_a_level(X))


def test_a_buffer_with_a_tangent():
    model = Scaled()
    compiled = firebrick.compile(model)
    compiled(X)
    with forward_ad.dual_level():
        model.scale = forward_ad.make_dual(torch.ones(3), T)
        tangent = forward_ad.unpack_dual(compiled(X)).tangent
    torch.testing.assert_close(tangent, X * T)


def test_a_tensor_written_in_place():
    compiled = firebrick.compile(lambda x, y: x.mul_(y))
    compiled(X.clone(), X)
    with forward_ad.dual_level():
        written = X.clone()
        compiled(written, forward_ad.make_dual(X, T))
        torch.testing.assert_close(forward_ad.unpack_dual(written).tangent, X * T)


def test_products_of_jacobians():
    compiled = firebrick.compile(square)
    compiled(X)
    torch.testing.assert_close(torch.func.jvp(compiled, (X,), (T,)), torch.func.jvp(square, (X,), (T,)))
    torch.testing.assert_close(torch.func.jacfwd(compiled)(X), torch.func.jacfwd(square)(X))


def test_random_numbers_in_a_transform():
    compiled = firebrick.compile(lambda: torch.rand(2))
    compiled()
    rows = torch.vmap(lambda x: x + compiled(), randomness="different")(torch.zeros(4))
    assert rows.unique().numel() == 8
