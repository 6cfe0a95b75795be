"""A write to what is a view only where a size is 1 reaches the argument there, with symbolic sizes too."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("sizes", [(3, 1, 4, 1), (1, 3, 1)])
def test_a_write_to_a_view_of_one_row_reaches_the_argument(sizes):
    def function(x):
        y = x.transpose(0, 1).reshape(-1)
        y.add_(1)
        return y * 2

    compiled = firebrick.compile(function, dynamic=True)
    for size in sizes:
        plain = torch.arange(size * 5.0).reshape(size, 5)
        ours = plain.clone()
        with torch.no_grad():
            assert torch.equal(function(plain), compiled(ours))
        assert torch.equal(plain, ours)
