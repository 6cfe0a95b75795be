"""Two results that are views of a copy with gaps, written between, read memory beyond it: it was copied without gaps."""

import pytest
import torch

import firebrick
from firebrick.report import FirebrickWarning


def _two_views(x):
    copy = torch.select_scatter(x, x.select(1, 0) + 1, 1, 0)  # keeps the gaps of its first argument
    row, part = copy.select(0, 3), copy[:, 2:]
    part[2:].mul_(2)
    return row, part


def _one_view(x):
    return _two_views(x)[0]


@pytest.mark.filterwarnings(f"ignore::{FirebrickWarning.__module__}.{FirebrickWarning.__name__}")
@pytest.mark.parametrize("program", [_two_views, _one_view])
def test_results_are_as_in_eager_mode(program):
    x = torch.arange(63).as_strided((7, 4), (9, 2))
    with torch.no_grad():
        got = firebrick.compile(program, options={"strict": False})(x)
    torch.testing.assert_close(got, program(x), rtol=0, atol=0)
