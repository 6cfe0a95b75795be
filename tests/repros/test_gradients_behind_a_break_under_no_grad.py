"""A frame that went on under `no_grad` and left it lost the gradients of what it computed behind."""

from typing import Any

import pytest
import torch

import firebrick


def behind(x: Any, w: Any) -> Any:
    with torch.no_grad():
        y = x * 2
        firebrick.graph_break()
    return y, w * x


def before_and_behind(x: Any, w: Any) -> Any:
    with torch.no_grad():
        y = x * 2
        firebrick.graph_break()
        z = w.sin()
    return y, z, w * z


def on_for_a_while(x: Any, w: Any) -> Any:
    with torch.no_grad():
        firebrick.graph_break()
        y = w.sin()
        with torch.enable_grad():
            z = w * y
        return z, z + 1, torch.is_grad_enabled()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "firebrick"])
@pytest.mark.parametrize("function", [behind, before_and_behind, on_for_a_while])
def test_gradients_are_those_of_plain_python(function: Any, backend: str) -> None:
    x = torch.linspace(-1, 1, 4)
    w = torch.arange(4.0).requires_grad_()
    wanted = function(x, w)
    compiled = firebrick.compile(function, backend=backend)
    for _ in range(2):
        got = compiled(x, w)
        assert torch.is_grad_enabled()
        torch.testing.assert_close(got, wanted)
        for one, other in zip(got, wanted, strict=True):
            if isinstance(other, torch.Tensor):
                assert one.requires_grad == other.requires_grad
            if isinstance(other, torch.Tensor) and other.requires_grad:
                gradients = (torch.autograd.grad(t.sum(), w, retain_graph=True)[0] for t in (one, other))
                torch.testing.assert_close(*gradients)
