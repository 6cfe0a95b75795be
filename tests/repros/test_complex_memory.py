"""Writes to tensors of complex numbers, and real views of them with gaps, left a graph to eager kernels."""

import copy

import pytest
import torch

import firebrick


def scaled(x):
    y = x + 0
    x.mul_(2)
    return y


def row(x):
    x[0] = x[1] * 1j
    return x.abs()


def filled(x):
    x.copy_(torch.fft.fft(x.real))
    return x.real.sum()


def with_gaps(x):
    return torch.view_as_real(x[:, 1:3]) * 2


def of_columns(x):
    return torch.view_as_real(x.t()[1:]).sin() + torch.view_as_real(x[..., ::2].exp()).sum()


def beside_others(x):
    parts = torch.view_as_real(torch.fft.fft(x)[:, :2]).permute(2, 0, 1)
    whole = (parts.reshape(2, 6) * 3).view(2, 3, 2).permute(1, 2, 0)
    return torch.view_as_complex(whole.contiguous()) * 2


@pytest.mark.parametrize("function", [scaled, row, filled, with_gaps, of_columns, beside_others])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_memory_is_written_and_seen(function, dtype):
    x = torch.randn(3, 4, dtype=dtype)
    ours, theirs = copy.deepcopy(x), copy.deepcopy(x)
    compiled = firebrick.compile(function, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(ours), function(theirs))
        torch.testing.assert_close(ours, theirs)


def test_float8_is_written():
    def kept(x, y):
        y.copy_(x)
        return y.float()

    x, ours, theirs = torch.randn(4), *(torch.zeros(4, dtype=torch.float8_e4m3fn) for _ in range(2))
    torch.testing.assert_close(firebrick.compile(kept, fullgraph=True)(x, ours), kept(x, theirs))
    torch.testing.assert_close(ours.float(), theirs.float())
