"""A sum that is divided inside of a function of a GPU kernel keeps its parentheses: trunc(a + 1 / b) was not trunc((a + 1) / b)."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "targets" / "cuda"))

from interpreted import AVAILABLE  # noqa: E402

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")

CASES = {
    "quotient of a sum": (lambda x: torch.div(x + 1, -2, rounding_mode="trunc"), torch.arange(-4.0, 5).double()),
    "no sign": (lambda x: ~torch.signbit(x * 2), torch.tensor([0.0, -0.0, 1.0, -1.0])),
    "sign of common bits": (lambda x: torch.sign(x & 3), torch.arange(8, dtype=torch.uint8)),
    "shift by common bits": (lambda x: torch.bitwise_left_shift(x, x & 9), torch.arange(12, dtype=torch.uint8)),
}


@pytest.mark.parametrize("name", CASES)
def test_an_operand_is_a_whole(name):
    from tile_agree import run_interpreted

    fn, x = CASES[name]
    (made,), _ = run_interpreted(fn, x)
    assert torch.equal(made, fn(x))
