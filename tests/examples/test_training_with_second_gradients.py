"""Trainings whose loss has gradients in it: a few steps of each stay as near to float64 as eager mode."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import higher_gradients  # noqa: E402

pytestmark = pytest.mark.compiler


@pytest.mark.parametrize("name", higher_gradients.PROGRAMS)
def test_loss_curves(name):
    curves = higher_gradients.curves(name, 4)
    size = max(map(abs, curves["float64"]))
    ours, eager = (
        max(abs(a - b) for a, b in zip(curves[kind], curves["float64"], strict=True)) / size
        for kind in ("firebrick", "eager")
    )
    assert ours <= 2 * eager + 1e-6
