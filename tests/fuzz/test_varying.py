"""A few programs whose sizes vary in every run; `python -m tests.fuzz --varying` makes many."""

import pytest
from tests.fuzz.compare import compare
from tests.fuzz.features import generate


@pytest.mark.compiler
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
def test_programs_at_four_sizes(seed):
    assert compare(generate(seed, "varying")) is None
