"""`as_strided` of an argument, read after another view of it was written, showed a copy without what lies between."""

import pytest
import torch

import firebrick
from firebrick.report import FirebrickWarning

pytestmark = pytest.mark.filterwarnings(f"ignore::{FirebrickWarning.__module__}.{FirebrickWarning.__name__}")


def _first_two(x):
    view = torch.as_strided(x, (2,), (1,))
    x[:, -1].mul_(2)
    return view.clone()


def _beyond(x):
    view = torch.as_strided(x, (8,), (1,))
    x.add_(1)
    return view.clone()


def test_memory_with_gaps():
    make = lambda: torch.arange(500).as_strided((8, 3, 8), (51, 17, 2))  # noqa: E731
    compiled = firebrick.compile(_first_two, options={"strict": False})
    torch.testing.assert_close(compiled(make()), _first_two(make()))


@pytest.mark.parametrize("start", [0, 4])
def test_places_beyond_the_tensor(start):
    make = lambda: torch.arange(16)[start : start + 4]  # noqa: E731
    compiled = firebrick.compile(_beyond, options={"strict": False})
    torch.testing.assert_close(compiled(make()), _beyond(make()))
