"""A backward that is handed a batch of gradients raised; it is run for each of them."""

import pytest
import torch
from torch import nn

import firebrick

X = torch.linspace(-1, 1, 3)


def product(x):
    return (x.sin() * x).cumsum(0)


def test_is_grads_batched():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2))
    x = torch.randn(5, 3, requires_grad=True)
    found = []
    for call in (module, firebrick.compile(module)):
        inputs = [x, *module.parameters()]
        found.append(torch.autograd.grad(call(x).sum(0), inputs, torch.eye(2), is_grads_batched=True))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("results", [lambda x: (product(x), x * x), lambda x: (x.exp(),)])
def test_batches_of_any_size(results, count):
    found = []
    for call in (results, firebrick.compile(results)):
        x = X.clone().requires_grad_()
        given = call(x)
        batch = torch.arange(3.0 * count).reshape(count, 3)
        found.append(torch.autograd.grad(given, x, [batch] * len(given), is_grads_batched=True))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_jacobian(strategy):
    want, got = (
        torch.autograd.functional.jacobian(f, X, vectorize=True, strategy=strategy)
        for f in (product, firebrick.compile(product))
    )
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("levels", [0, 1, 2])
def test_vmap_over_a_backward(levels):
    found = []
    for call in (product, firebrick.compile(product)):
        x = X.clone().requires_grad_()
        y = call(x)
        backward = lambda v, x=x, y=y: torch.autograd.grad(y, x, v, retain_graph=True)[0]  # noqa: E731
        batch = torch.arange(9.0).reshape(3, 3)
        if levels == 2:
            found.append(torch.vmap(torch.vmap(backward))(torch.stack([batch, batch + 1])))
        else:
            found.append(torch.vmap(backward, in_dims=1)(batch[:, : 3 * levels]))
    torch.testing.assert_close(found[1], found[0])


def test_vmap_over_a_vjp():
    found = [torch.vmap(torch.func.vjp(f, X)[1])(torch.eye(3))[0] for f in (product, firebrick.compile(product))]
    torch.testing.assert_close(found[1], found[0])
