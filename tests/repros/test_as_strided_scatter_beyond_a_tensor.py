"""`as_strided_scatter` beyond its argument, inside the argument's storage, wrote past the end of the copy."""

import pytest
import torch

import firebrick
from firebrick.report import FirebrickWarning


@pytest.mark.filterwarnings(f"ignore::{FirebrickWarning.__module__}.{FirebrickWarning.__name__}")
@pytest.mark.parametrize(("taken", "offset"), [(slice(0, 1), 0), (slice(8, 16), 0), (slice(4, 8), None)])
def test_it_is_eagers(taken, offset):
    def write(x, y):
        return x[taken].as_strided_scatter(y, (2, 4), (4, 1), offset) + 1

    x, y = torch.arange(16.0), torch.ones(2, 4)
    torch.testing.assert_close(firebrick.compile(write, options={"strict": False})(x, y), write(x, y))
    part = x[taken]
    alone = lambda part, y: part.as_strided_scatter(y, (2, 4), (4, 1), offset)  # noqa: E731
    torch.testing.assert_close(firebrick.compile(alone, options={"strict": False})(part, y), alone(part, y))
