"""The gradient of a view of an expanded argument goes to the elements of the view; it was shared out among all elements
that lie in the same places."""

import pytest
import torch

import firebrick


def row(y):
    return y[:, 0]


def row_and_sum(y):
    return y[:, 0], y.sum()


@pytest.mark.parametrize("fn", [row, row_and_sum])
@pytest.mark.filterwarnings("ignore:.*several elements in one place")
def test_only_the_elements_of_the_view_have_a_gradient(fn):
    grads, given = [], torch.randn(5, 1, 4)
    for run in (fn, firebrick.compile(fn, options={"strict": False})):
        y = given.expand(5, 8, 4).requires_grad_()
        out = run(y)
        (out[0] * out[1] if isinstance(out, tuple) else out).square().sum().backward()
        grads.append(y.grad)
    torch.testing.assert_close(grads[1] - grads[0], torch.zeros(5, 8, 4), atol=1e-4, rtol=0)
