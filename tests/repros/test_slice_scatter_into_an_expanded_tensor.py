"""torch 2.11's meta kernel of slice_scatter keeps the strides of an expanded argument, so results overlapped."""

import pytest
import torch

import firebrick


@pytest.mark.compiler
@pytest.mark.parametrize("count", [20, 10])
def test_a_result_does_not_overlap_itself(count):
    base, part = torch.randn(20, 6).expand(20, 20, 6), torch.randn(count, 20, 6)

    def scattered(x, y):
        return torch.slice_scatter(x, y, 0, 0, count, 1)

    found, eager = firebrick.compile(scattered, options={"cache": False})(base, part), scattered(base, part)
    assert torch.equal(found, eager) and found.stride() == eager.stride()
