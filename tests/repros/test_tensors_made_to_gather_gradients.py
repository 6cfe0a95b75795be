"""`torch.zeros(n, requires_grad=True)` in a graph without other tensors that want gradients lost its wish for them."""

from typing import Any

import pytest
import torch

import firebrick


def gradient(x: Any) -> Any:
    weight = torch.zeros(x.shape[-1], requires_grad=True)
    loss = ((weight * x).tanh() - 0.5).square().mean()
    return torch.autograd.grad(loss, weight)[0]


def given_back(x: Any) -> Any:
    with torch.no_grad():
        weight = torch.ones(x.shape, requires_grad=True)
    return weight, weight * x


@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("function", [gradient, given_back])
def test_they_want_gradients(function: Any, backend: str) -> None:
    x = torch.linspace(-1, 1, 8)
    wanted = function(x)
    compiled = firebrick.compile(function, backend=backend)
    for _ in range(2):
        got = compiled(x)
        torch.testing.assert_close(got, wanted)
        if function is given_back:
            assert [t.requires_grad for t in got] == [True, True]
            assert got[0].is_leaf
