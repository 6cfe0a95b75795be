"""A sample of torch's operator database in every run; `make ops` takes all of it."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.ops.cases import DTYPES, cases, operators  # noqa: E402
from tests.ops.compare import check, differs  # noqa: E402

OPERATORS = operators()
PARTS = 12


@pytest.mark.compiler
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_are_as_in_eager(part):
    """Every eighth operator, each with one dtype and two samples in all variants, compiled together."""
    names = sorted(OPERATORS)[part :: 8 * PARTS]
    chosen = []
    for k, name in enumerate(names):
        dtypes = [d for d in DTYPES.values() if d in OPERATORS[name].supported_dtypes("cpu")]
        if dtypes and not name.startswith(("empty", "new_empty")):
            chosen += list(cases(OPERATORS[name], dtypes[(part + k) % len(dtypes)], end=2))
    found = check("several", chosen, batch=100)
    assert found.done > 10
    assert not found.wrong
    assert not found.failed


@pytest.mark.parametrize("error", [0.0, 1e-9, 1e-3])
def test_comparison_sees_errors(error):
    exact = torch.linspace(1, 2, 50, dtype=torch.float64)
    seen = differs(exact.float(), (exact * (1 + error)).float(), exact, False)
    assert bool(seen) == (error > 1e-6)


def test_comparison_sees_types_and_shapes():
    x = torch.ones(3)
    assert differs(x, x.double(), None, False)
    assert differs(x, x[:2], None, False)
    assert differs(x, torch.full((3,), float("nan")), None, False)
    assert differs(torch.arange(3), torch.arange(3).flip(0), None, False)
    assert not differs(x, x.clone(), None, False)
