"""Gradients through a view that was reshaped in place and whose memory was written to later were another view's: on fake
tensors autograd writes such a view's history anew as it was before. Eager's kernels run these graphs."""

import warnings

import pytest
import torch

import firebrick


def reshaped_beside_another(x):
    v = x * 2
    a, b = v[...], v[...]
    a.transpose_(0, -1)
    b.unsqueeze_(1)
    return a, b, a + 1


def base_written_later(x):
    v = x + x
    a = v[...]
    a.transpose_(0, -1)
    v.mul_(2)
    return a + 1, v


def written_later(x):
    v = x + x
    a = v[...]
    a.transpose_(0, -1)
    a.mul_(2)
    return a + 1, v


@pytest.mark.parametrize("function", [reshaped_beside_another, base_written_later, written_later])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3)])
def test_gradients_are_eagers(function, shape):
    x = torch.randn(shape, requires_grad=True)
    rows = []
    for call in (function, firebrick.compile(function, options={"strict": False})):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that eager's kernels run it
            results = call(x)
        weights = [torch.arange(t.numel(), dtype=t.dtype).view(t.shape) for t in results]
        rows.append([*results, *torch.autograd.grad(results, x, weights)])
    torch.testing.assert_close(rows[0], rows[1])
