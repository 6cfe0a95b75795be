"""Graphs of complex numbers fell back in training: conjugates of Python numbers, and loops that move them."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z * z + 1j * z.conj(),
        lambda z: z * (1 + 2j) - 3j,
        lambda z: z.cumsum(1),
        lambda z: z.flip(1).roll(1, 0),
        lambda z: z.sum(0) * 2j,
    ],
)
def test_gradients(function):
    found = []
    for call in (function, firebrick.compile(function, options={"strict": True})):
        z = torch.complex(torch.linspace(-1, 1, 12), torch.linspace(2, 0, 12)).reshape(3, 4).requires_grad_()
        result = call(z)
        result.abs().sum().backward()
        found.append((result.detach(), z.grad))
    torch.testing.assert_close(found[1], found[0])
