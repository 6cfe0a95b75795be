"""A loss that depends on some results only gave zeros, and not None, for what the other results alone depend on."""

import pytest
import torch
from torch import nn

import firebrick


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        return a * 2, b


def relu(x, y):
    return x * 2, torch.relu(y)


def leaky(x, y):
    return x.flip(1), torch.where(y > 0, y, y * 0.1)


def volume(x, y):
    return x.sin(), nn.functional.batch_norm(y.reshape(2, 3, 1, 2), None, None, training=True).relu()


def both(x, y):
    return Two.apply(x, y)


@pytest.mark.compiler
@pytest.mark.parametrize("function", [relu, leaky, volume, both])
@pytest.mark.parametrize("read", [0, 1])
def test_gradients_are_none_where_autograd_does_not_lead(function, read):
    found = []
    for run in (function, firebrick.compile(function)):
        torch.manual_seed(0)
        x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        run(x, y)[read].square().sum().backward()
        found.append((x.grad, y.grad))
    for eager, ours in zip(*found, strict=True):
        assert (eager is None) == (ours is None)
        assert eager is None or torch.allclose(eager, ours)


@pytest.mark.compiler
@pytest.mark.parametrize("written", [0, 1])
def test_a_write_to_what_the_loss_does_not_need_is_no_error(written):
    def function(x, y):
        return x.exp(), y.sigmoid()

    found = []
    for run in (function, firebrick.compile(function)):
        torch.manual_seed(0)
        x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
        out = run(x, y)
        out[written].add_(1)
        out[1 - written].sum().backward(retain_graph=True)
        found.append([None if g is None else g.clone() for g in (x.grad, y.grad)])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out[written].sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (out[0].sum() + out[1].sum()).backward()
    for eager, ours in zip(*found, strict=True):
        assert (eager is None) == (ours is None)
        assert eager is None or torch.allclose(eager, ours)
