"""Gradients flowed through a view that was made under `no_grad` to what it is a view of, or it wanted none itself."""

import pytest
import torch

import firebrick


def of_an_argument(h):
    with torch.no_grad():
        view = h.view(3, 2)
    return view, h * 2


def of_a_result(h):
    doubled = h * 2
    with torch.no_grad():
        view = doubled.view(3, 2)
    return view, doubled


def alone(h):
    doubled = h * 2
    with torch.no_grad():
        return doubled.t()


def only_a_view(h):
    with torch.no_grad():
        return h.t()


def detached(h):
    with torch.no_grad():
        return h.detach().t(), h.t()


def outcome(function):
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    made = function(x)
    made = made if isinstance(made, tuple) else (made,)
    facts = [(one.requires_grad, one.is_leaf, one.tolist()) for one in made]
    if made[0].requires_grad:
        (made[0] * 3).sum().backward()
    return facts, made[0].grad is None, x.grad is None


@pytest.mark.parametrize("function", [of_an_argument, of_a_result, alone, only_a_view, detached])
@pytest.mark.parametrize("around", [torch.enable_grad, torch.no_grad])
def test_views_are_leaves(function, around):
    compiled = firebrick.compile(function, options={"strict": True})

    def within(call):
        def run(x):
            with around():
                return call(x)

        return run

    assert outcome(within(compiled)) == outcome(within(function))
