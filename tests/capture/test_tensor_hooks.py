"""Hooks of tensors that a graph makes, and reentrant checkpoints: gradients beside plain Python's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import firebrick
from firebrick.errors import Unsupported

X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]])
W = torch.tensor([1.0, -0.5, 2.0], requires_grad=True)
KEPT: list[Any] = []


def one(x):
    y = x * W
    y.register_hook(lambda g: g * 2)
    return (y.sin() * 3).sum()


def used_before_and_of_outer_tensors(x):
    y = x * W
    z = y * 2
    y.register_hook(lambda g: g * x + x.abs().sum())
    return (y.sin() + z).sum()


def several(x):
    y = x * W
    y.register_hook(lambda g: g * 2)
    y.register_hook(lambda g: g.clamp(-1, 1))
    a = y.exp()
    a.register_hook(lambda g: None)
    return (a * 3).sum() + y.sum()


def written_behind(x):
    y = x * W
    view = y[0]
    view.register_hook(lambda g: g * 2)
    y.register_hook(lambda g: g + 1)
    y.mul_(3)
    return y.sum() + view.sum()


def checkpointed(x):
    return checkpoint(lambda t: (t * W).sin() * torch.nn.functional.dropout(t, 0.5), x * W, use_reentrant=True).sum()


def of_a_result(x):
    y = x * W
    y.register_hook(lambda g: g * 5)
    return y


def with_an_effect(x):
    y = x * W
    y.register_hook(lambda g: KEPT.append(1))
    return y.sum()


def removed(x):
    y = x * W
    handle = y.register_hook(lambda g: g * 2)
    z = y.sum()
    handle.remove()
    return z


def of_a_parameter(x):
    W.register_hook(lambda g: g * 2)
    return (x * W).sum()


def gradients(fn: Any) -> list[Any]:
    results: list[Any] = []
    for _ in range(2):
        KEPT.clear()
        torch.manual_seed(0)
        W.grad, W._backward_hooks = None, None
        out = fn(X)
        out.sum().backward()
        results += [out.detach(), W.grad, len(KEPT)]
    return results


WHOLE = [one, used_before_and_of_outer_tensors, several, written_behind, checkpointed]
BROKEN = [of_a_result, with_an_effect, removed, of_a_parameter]


@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("function", [*WHOLE, *BROKEN])
def test_gradients_are_plain_pythons(function: Any, backend: str) -> None:
    compiled = firebrick.compile(function, backend=backend, fullgraph=function in WHOLE)
    torch.testing.assert_close(gradients(compiled), gradients(function))


@pytest.mark.parametrize("function", BROKEN)
def test_what_is_seen_from_outside_ends_the_graph(function: Any) -> None:
    firebrick.reset()  # code that is never looked at again is, then
    with pytest.raises(Unsupported, match=r"register_hook|RemovableHandle"):
        firebrick.compile(function, backend="eager", fullgraph=True)(X)


def test_a_gradient_of_a_result_with_a_hook_is_asked_of_eager() -> None:
    for fn in (of_a_result, firebrick.compile(of_a_result)):
        y = fn(X)
        (gradient,) = torch.autograd.grad(y.sum(), y)
        assert torch.equal(gradient, torch.full_like(X, 5.0))


def test_hooks_take_part_in_gradients_of_gradients() -> None:
    def penalty(fn: Any) -> Any:
        (first,) = torch.autograd.grad(fn(X), W, create_graph=True)
        return torch.autograd.grad(first.square().sum(), W)

    torch.testing.assert_close(penalty(firebrick.compile(one, fullgraph=True)), penalty(one))
