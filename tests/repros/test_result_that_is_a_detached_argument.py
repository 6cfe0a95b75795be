"""`y.detach()` of an argument that requires gradients is a tensor of its own without history, on its memory."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("firebrick", marks=pytest.mark.compiler)])
def test_a_detached_argument_has_no_history(backend):
    @firebrick.compile(backend=backend)
    def f(y):
        return y.detach(), y.detach().t(), y.detach() + 1

    y = torch.ones(2, 3, requires_grad=True) * 2
    whole, turned, _ = f(y)
    assert whole is not y
    assert not whole.requires_grad and not turned.requires_grad
    assert whole.data_ptr() == turned.data_ptr() == y.data_ptr()
