"""Operators whose rules took sizes at hand for those of all calls, or looked at none: shapes were wrong, or nothing
was refused."""

import pytest
import torch
import torch.nn.functional as F

import firebrick


@pytest.mark.parametrize("operator", [torch.pinverse, torch.linalg.svdvals, lambda x: torch.linalg.svd(x)[0].abs()])
def test_singular_values_of_one_row(operator):
    def function(x):
        return operator(x[: x.shape[0] - 2, : x.shape[1] - 2])

    compiled = firebrick.compile(function)
    for size in (7, 8, 5, 3, 2):
        x = torch.randn(size, size)
        torch.testing.assert_close(compiled(x), function(x), atol=1e-3, rtol=1e-3)


def test_a_norm_of_other_sizes_than_it_is_told():
    compiled = firebrick.compile(lambda x, w: F.layer_norm(x, (4,), w, w), dynamic=True)
    compiled(torch.ones(3, 4), torch.ones(4))
    for size in (5, 1):
        with pytest.raises(RuntimeError, match="normalized_shape"):
            compiled(torch.ones(3, size), torch.ones(size))


def test_a_view_beyond_memory():
    compiled = firebrick.compile(lambda x: (x + 1).as_strided((2, 2), (1, 2)), dynamic=True)
    compiled(torch.ones(6))
    with pytest.raises(RuntimeError, match="out of bounds|outside of the tensor"):
        compiled(torch.ones(2))
