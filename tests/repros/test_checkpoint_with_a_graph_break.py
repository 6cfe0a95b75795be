"""The backward of a checkpoint whose function has a graph break found other saved tensors than the forward's."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import firebrick

linear = nn.Linear(4, 4)


def inner(t):
    return torch.tanh(linear(t)) + t.detach() * 2


def broken(t):
    if t.sum().item() > 1e9:
        return t
    return inner(t).sin() * inner(t)


def called_before(t):
    return inner(t) + checkpoint(broken, t, use_reentrant=False)


def with_options(t):
    def scaled(t, factor, *, shift):
        return broken(t * factor) + shift

    return checkpoint(scaled, t, 2.0, shift=0.5, use_reentrant=False, preserve_rng_state=False)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    check(lambda t: checkpoint(broken, t * 1, use_reentrant=reentrant))


@pytest.mark.parametrize("function", [called_before, with_options])
def test_other_calls(function):
    check(function)


def check(function):
    outcomes = []
    compiled = firebrick.compile(function)
    for call in (function, compiled, compiled):
        linear.zero_grad()
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
        y = call(x)
        y.sum().backward()
        outcomes.append((y.detach(), x.grad, linear.weight.grad.clone()))
    for outcome in outcomes[1:]:
        for mine, other in zip(outcome, outcomes[0], strict=True):
            torch.testing.assert_close(mine, other)
