"""A few programs whose sizes vary in every run; `python -m tests.fuzz --varying` makes many."""

import pytest
import torch
from tests.fuzz.compare import as_near, compare
from tests.fuzz.features import generate


@pytest.mark.compiler
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
def test_programs_at_four_sizes(seed):
    assert compare(generate(seed, "varying")) is None


def test_numbers_as_near_to_double_precision_as_plain_ones():
    exact = torch.tensor([70.0, -3.0, 0.5], dtype=torch.float64)
    plain = (exact + torch.tensor([0.016, -0.01, 0.0])).float()
    assert as_near(plain, (exact - 0.014).float(), exact)
    assert not as_near(plain, (exact + 0.05).float(), exact)
    assert not as_near(plain, torch.tensor([70.0, -3.0, torch.nan]), exact)
