"""A reentrant checkpoint has a backward of its own, in which hooks of a tied weight see a part of its gradient: as a
region of a graph it showed them the sum, once."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import firebrick

first, second = nn.Linear(4, 4), nn.Linear(4, 4)
second.weight = first.weight


def model(x):
    return checkpoint(lambda t: torch.tanh(second(t)) * t, first(x), use_reentrant=True).sum()


def clamped(weight, seen):
    return weight.register_hook(lambda g: seen.append(g.clone()) or g.clamp(-0.1, 0.1))


def accumulated(weight, seen):
    return weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))


def outcome(call, hook):
    first.zero_grad()
    second.zero_grad()
    seen = []
    handle = hook and hook(first.weight, seen)
    x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()
    call(x).backward()
    if handle:
        handle.remove()
    return [x.grad, *seen, first.weight.grad, first.bias.grad, second.bias.grad]


@pytest.mark.parametrize("hooks", [(clamped,), (None, clamped, None), (None, accumulated), (accumulated, None)])
def test_hooks_see_what_they_see_in_eager_mode(hooks):
    compiled = firebrick.compile(model)
    for hook in hooks:
        torch.testing.assert_close(outcome(compiled, hook), outcome(model, hook))


def test_without_hooks_it_is_a_region_of_the_graph():
    explained = firebrick.explain(model)(torch.ones(2, 4, requires_grad=True))
    assert not explained.to_dict()["breaks"]
