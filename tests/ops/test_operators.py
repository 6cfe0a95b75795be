"""A sample of torch's operator database, another one in every run; `make ops` takes all of it.

`OPERATOR_SEED=17 python -m pytest tests/ops` repeats the sample of a run, whose names of tests end in 17.
"""

import contextlib
import os
import sys
from pathlib import Path

import pytest
import torch

from firebrick.fakes import refusals
from firebrick.fakes.mode import new_fake_mode, refusing

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.ops.cases import DTYPES, cases, operators  # noqa: E402
from tests.ops.compare import (  # noqa: E402
    BROADCAST_UNINITIALIZED,
    EMPTY_UNINITIALIZED,
    OTHER_LAYOUT,
    TOLERANCE,
    UNINITIALIZED,
    check,
    differs,
    expect,
)
from tests.ops.errors import check_errors, error_cases, spoiled_cases  # noqa: E402

OPERATORS = operators()
SEED, PARTS = int(os.environ["OPERATOR_SEED"]), 12
APART = {*BROADCAST_UNINITIALIZED, *EMPTY_UNINITIALIZED, *OTHER_LAYOUT, *TOLERANCE, *UNINITIALIZED}
"""What is compared in ways of its own, an operator at a time."""


def parts(count):
    """Parts of the sample, whose names tell the seed."""
    return pytest.mark.parametrize("part", range(count), ids=lambda part: f"{part}-{SEED}")


@pytest.mark.compiler
@parts(PARTS)
def test_operators_are_as_in_eager(part):
    """Every eighth operator, each with one dtype and two samples in all variants, compiled together."""
    names = sorted(OPERATORS)[part + PARTS * (SEED % 8) :: 8 * PARTS]
    chosen = []
    for k, name in enumerate(names):
        dtypes = [d for d in DTYPES.values() if d in OPERATORS[name].supported_dtypes("cpu")]
        if dtypes and not {name, OPERATORS[name].name} & APART:
            chosen += list(cases(OPERATORS[name], dtypes[(part + k + SEED // 8) % len(dtypes)], end=2))
    found = check("several", chosen, batch=100)
    assert found.done > 10
    assert not found.wrong
    assert not found.failed


@pytest.mark.compiler
@parts(4)
def test_errors_are_those_of_eager(part):
    """Error inputs of every twelfth operator that has some, and spoiled samples of every sixtieth operator."""
    names = sorted(name for name, op in OPERATORS.items() if op.error_inputs_func is not None)
    found = check_errors(
        case for name in names[part + 4 * (SEED % 3) :: 12] for case in error_cases(name, OPERATORS[name])
    )
    chosen = sorted(OPERATORS)[15 * part + SEED % 15 :: 60]
    found.add(check_errors((c for name in chosen for c in spoiled_cases(name, OPERATORS[name], 1)), only_refused=True))
    assert len(found.same) > 40
    assert not found.other
    assert not found.silent


@pytest.mark.parametrize("large", [0, refusals._LARGE])
@parts(4)
def test_calls_that_eager_takes_are_not_refused(part, large, monkeypatch):
    """Samples of every twelfth operator, asked about with sizes of their own and with small ones."""
    monkeypatch.setattr(refusals, "_LARGE", large)
    monkeypatch.setattr(refusals, "_answers", {})
    refused = []
    for name in sorted(OPERATORS)[part + 4 * (SEED % 3) :: 12]:
        for case in cases(OPERATORS[name], torch.float32, end=3):
            if expect(case) is not None and captures(case, False) and not captures(case, True):
                refused.append(case.describe())
    assert not refused


def captures(case, asks):
    """Whether a case runs on fake tensors."""
    mode = new_fake_mode()
    fakes = [mode.from_tensor(t.detach()) for t in case.tensors()]
    try:
        with refusing(mode) if asks else contextlib.nullcontext(), mode:
            case.call(fakes)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("name", ["pca_lowrank", "svd_lowrank"])
def test_factors_of_computed_matrices_are_compared_by_their_product(name):
    """A matrix of equal rows is zero behind its mean, or nearly so: its singular vectors are any."""
    found = check(name, list(cases(OPERATORS[name], torch.float32, end=4)))
    assert any(case.startswith("broadcast") for case in found.kinds)
    assert not found.wrong


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
