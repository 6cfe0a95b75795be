"""Where captured code called `backward()`, the function of a checkpoint that had run plainly was captured when it was
computed again: it saved other tensors than the first time, and gradients were wrong."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import firebrick

linear = nn.Linear(4, 4)


def hooked(t):
    return linear(t).sin() * t


def broken(t):
    y = linear(t)
    firebrick.graph_break()
    return y.sin() * t


def gradients(step):
    seen = []
    linear.zero_grad()
    handle = linear.register_full_backward_hook(lambda module, given, made: seen.append(made[0].clone()))
    x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
    y = step(x)
    handle.remove()
    return [y.detach(), x.grad, *seen, *[p.grad for p in linear.parameters()]]


@pytest.mark.parametrize("body", [hooked, broken])
def test_the_function_runs_plainly_again(body):
    def step(x):
        y = checkpoint(body, x * 1, use_reentrant=False) * 2
        y.sin().sum().backward()
        return y

    torch.testing.assert_close(gradients(firebrick.compile(step)), gradients(step))


def test_a_checkpoint_of_plain_code():
    def ends(y):
        y.sin().sum().backward()
        return y

    compiled = firebrick.compile(ends)
    found = [
        gradients(lambda x, end=end: end(checkpoint(hooked, x * 1, use_reentrant=False))) for end in (compiled, ends)
    ]
    torch.testing.assert_close(*found)
