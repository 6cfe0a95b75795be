"""Zeros in place of a gradient that is absent had another layout than it, so that a view behind their sum failed."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("backend", ["aot_eager", "firebrick"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_transposed_gradient_that_is_absent(backend, turned):
    def function(w):
        x = w.view(6, 4).t()
        if turned:
            return x.t() * 2, x.contiguous() * 3
        second = x.contiguous() * 3
        return x.t() * 2, second

    w = torch.randn(24, requires_grad=True)
    for result in (0, 1):
        grads = [
            torch.autograd.grad(f(w)[result].sin().sum(), w)[0]
            for f in (function, firebrick.compile(function, backend=backend))
        ]
        torch.testing.assert_close(*grads)
