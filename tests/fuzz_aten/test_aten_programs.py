"""A few random programs in every run; `make fuzz-aten` makes many."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz_aten import varying  # noqa: E402
from tests.fuzz_aten.check import check  # noqa: E402
from tests.fuzz_aten.programs import generate  # noqa: E402


@pytest.mark.compiler
@pytest.mark.parametrize("first", [0, 20000, 40000])
def test_programs_are_as_in_eager(first):
    found = check([generate(seed) for seed in range(first, first + 16)])
    assert not [(p.describe(), kind, what) for p, kind, what in found if kind != "left"]


@pytest.mark.compiler
def test_programs_are_as_in_eager_at_other_sizes():
    found = varying.check_all([generate(seed) for seed in range(6)])
    assert not [(p.describe(), kind, what) for p, kind, what in found if kind != "left"]


def test_a_seed_makes_one_program():
    assert generate(7).describe() == generate(7).describe()
    assert generate(7).describe() != generate(8).describe()
