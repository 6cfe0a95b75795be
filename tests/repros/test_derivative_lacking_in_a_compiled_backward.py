"""Where eager mode lacks a derivative, a compiled backward on another backend raised BackendError, not eager's error."""

import pytest
import torch

import firebrick


@pytest.mark.filterwarnings("ignore:firebrick. a backward is left")
@pytest.mark.parametrize("backend", ["firebrick", "aot_eager", "eager"])
def test_error_is_that_of_eager_mode(backend):
    def drive():
        x = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
        loss = torch.cdist(x, x.detach() + 1).mean()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        gradient.sin().sum().backward()

    with pytest.raises(NotImplementedError) as plain:
        drive()
    with firebrick.compiled_backward(backend=backend), pytest.raises(NotImplementedError) as mine:
        drive()
    assert str(mine.value) == str(plain.value)


def test_a_backend_that_raises_something_else_is_an_error_of_the_backend():
    def broken(gm, example_inputs):
        raise NotImplementedError("no such kernel")

    x = torch.ones(3, requires_grad=True)
    with firebrick.compiled_backward(backend=broken), pytest.raises(firebrick.errors.BackendError):
        x.sin().sum().backward()
