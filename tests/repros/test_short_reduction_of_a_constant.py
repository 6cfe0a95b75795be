"""Reductions of a constant over fewer elements than a vector has lanes counted all lanes: GCC 12 folded the mask."""

import pytest
import torch
from same import same


@pytest.mark.compiler
@pytest.mark.parametrize("size", [1, 3, 5, 7, 9, 15])
def test_count_of_what_is_always_true(size):
    same(lambda x: (torch.count_nonzero(x == x, 0), (x == x).sum()), torch.arange(size))


@pytest.mark.compiler
def test_choice_by_place_between_two_constants():
    same(lambda x: x + torch.where(torch.arange(8) < 3, 1, 0), torch.zeros(8, dtype=torch.int64))
    same(lambda x: x + torch.where(torch.arange(16) < 3, 1.0, 0.0), torch.zeros(16))
