"""A result that is a view of an argument only where a size is 1 is one there, with symbols too."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize(
    "function", [lambda y: y.reshape(-1, 4), lambda y: (y.transpose(1, 2) * 2, y.flatten(0, 1))[1]]
)
def test_a_result_shares_the_memory_of_the_argument_as_in_eager(function):
    compiled = firebrick.compile(function, dynamic=True)
    for size in (5, 3, 1):
        y = torch.randn(size, 4, 4).transpose(0, 1)
        expected, result = function(y), compiled(y)
        assert torch.equal(expected, result)
        assert (result.data_ptr() == y.data_ptr()) is (expected.data_ptr() == y.data_ptr())
