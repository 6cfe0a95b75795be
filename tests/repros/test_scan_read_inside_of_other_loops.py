"""A running sum was fused with what reads it in loops of its own, and took a step in each of their iterations."""

import pytest
import torch

import firebrick

pytestmark = pytest.mark.compiler

READERS = {
    "rows": lambda x, y: y * x.cumsum(0)[:, None],
    "a sum over rows": lambda x, y: (y * x.cumsum(0)[:, None]).sum(1),
    "planes": lambda x, y: y[None] + y.cumsum(0)[:, None] * x.cumsum(0)[:, None, None],
    "the largest of rows": lambda x, y: (y + x.cummax(0).values[:, None]).amax(1),
}


@pytest.mark.parametrize("name", READERS)
def test_each_step_of_a_scan_is_taken_once(name):
    x, y = torch.randn(5), torch.randn(5, 12)
    if name == "planes":
        y = torch.randn(5, 5)
    fn = READERS[name]
    torch.testing.assert_close(firebrick.compile(fn)(x, y), fn(x, y))
