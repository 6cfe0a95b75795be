"""Views of an argument that is itself a view with the negative or conjugate bit, and wants gradients, had not the bit."""

import pytest
import torch

import firebrick

VIEWS = [lambda x: x.expand(-1, -1), lambda x: x.t(), lambda x: x[1:], lambda x: x.detach(), lambda x: x.unsqueeze(0)]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("grad", [False, True])
def test_bits_of_views(view, grad, mode):
    z = torch.randn(4, 3, dtype=torch.complex64)
    for x in (z.conj().imag, z.t().conj(), torch._neg_view(z.real)):
        x.requires_grad_(grad)
        with mode():
            got, want = firebrick.compile(view)(x), view(x)
            assert (got.is_neg(), got.is_conj(), got.stride()) == (want.is_neg(), want.is_conj(), want.stride())
            assert torch.equal(got, want)
