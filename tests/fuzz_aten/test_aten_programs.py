"""A few random programs in every run; `make fuzz-aten` makes many."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz_aten import varying  # noqa: E402
from tests.fuzz_aten.check import _Rounding, check  # noqa: E402
from tests.fuzz_aten.programs import TABLES, generate  # noqa: E402


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


def test_roundings_move_results_beside_another_default_device():
    """Inside a mode of dispatch the default device is the CPU: a generator on the other one was refused there."""
    x = torch.linspace(0, 1, 7, dtype=torch.float64)
    with torch.device("meta"), _Rounding(1e-3, 0):
        moved = F.layer_norm(x, (7,)).mean()
    assert 0 < abs(moved) < 1e-2


ZEROS = [t for table in TABLES.values() for t in table if "* 0).to(torch.int64)" in t]


@pytest.mark.parametrize("template", ZEROS)
def test_no_number_is_an_index_out_of_range(template):
    """On a GPU that ends the process' use of it."""
    names = {"y": torch.full((3, 3), torch.nan), "F": F, "torch": torch}
    eval(template.replace("{x}", "y").replace("{y}", "y").replace("{d}", "0"), names)
