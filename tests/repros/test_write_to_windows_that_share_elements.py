"""`x.unfold(-1, 2, 1).neg_()` turned each element once; eager turns those in two windows twice."""

import pytest
import torch

import firebrick
from firebrick.report import FirebrickWarning

WRITES = {
    "a window": lambda x: x.unfold(-1, 2, 1).neg_(),
    "a view of a window": lambda x: x.unfold(-1, 2, 1).view([15, 1, 1, 2]).neg_(),
    "strides": lambda x: x.as_strided((4, 3), (2, 1)).neg_(),
}


@pytest.mark.filterwarnings(f"ignore::{FirebrickWarning.__module__}.{FirebrickWarning.__name__}")
@pytest.mark.parametrize("name", WRITES)
def test_elements_are_written_as_often_as_eager_writes_them(name):
    def fn(x):
        y = x + 1
        WRITES[name](y)
        return y

    x = torch.arange(16.0)
    assert torch.equal(firebrick.compile(fn, options={"strict": False})(x), fn(x))


def test_windows_side_by_side_are_written_by_loops():
    def fn(x):
        y = x + 1
        y.unfold(-1, 2, 2).neg_()
        return y

    x = torch.arange(16.0)
    assert torch.equal(firebrick.compile(fn)(x), fn(x))
