"""The mean of equal numbers was off by a rounding, so that norms of them gave 2e-5 and more, where eager gives 0."""

from __future__ import annotations

import pytest
import torch

import firebrick

NUMBERS = (0.1, 0.7123, 1e3 / 3, -2.7)


@pytest.mark.parametrize("count", [7, 255, 1023])
def test_norms_of_equal_numbers_are_zero(count):
    def f(x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:]), torch.nn.functional.group_norm(x[:, None], 1)

    x = torch.tensor(NUMBERS)[:, None].expand(len(NUMBERS), count).contiguous()
    for result in firebrick.compile(f)(x):
        assert torch.equal(result, torch.zeros_like(result))


@pytest.mark.parametrize("count", [7, 255, 1023])
def test_equal_numbers_vary_by_zero_about_themselves(count):
    x = torch.tensor(NUMBERS)[:, None].expand(len(NUMBERS), count).contiguous()
    variance, mean = firebrick.compile(lambda x: torch.var_mean(x, -1))(x)
    assert torch.equal(variance, torch.zeros(len(NUMBERS)))
    assert torch.equal(mean, torch.tensor(NUMBERS))


def test_statistics_of_numbers_far_from_zero_keep_their_digits():
    torch.manual_seed(0)
    x = torch.randn(3, 4097) + 1e4
    variance, mean = firebrick.compile(lambda x: torch.var_mean(x, -1))(x)
    exact, middle = torch.var_mean(x.double(), -1)
    assert torch.allclose(variance.double(), exact, rtol=2e-6)
    assert torch.allclose(mean.double(), middle, rtol=1e-7)
