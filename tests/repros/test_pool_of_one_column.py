"""Where no gradients are asked for, `max_pool1d` gives rows one after the other, also where there is one column only."""

import pytest
import torch
import torch.nn.functional as F

import firebrick


@pytest.mark.parametrize("sizes", [(1,), (17, 1), (1, 17, 1)])
def test_what_follows_lies_as_in_eager(sizes):
    def function(x):
        pooled = F.max_pool1d(x.transpose(1, 2), 3, 1, 1)
        return pooled, F.avg_pool1d(pooled, 2, 1, 1)

    compiled = firebrick.compile(function)
    for size in sizes:
        x = torch.randn(2, size, 4)
        for result, wanted in zip(compiled(x), function(x), strict=True):
            assert torch.equal(result, wanted) and result.stride() == wanted.stride()
