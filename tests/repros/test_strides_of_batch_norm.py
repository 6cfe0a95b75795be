"""Batch norm of one image in channels last, whose first stride says nothing, gave a contiguous image."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(5, 8, 4, 1), (5, 8, 4, 2), (5, 1, 4, 1), (1, 8, 4, 1), (5, 8, 1, 1)])
def test_strides_are_eagers(shape, training):
    x = torch.randn(shape).permute(3, 2, 0, 1)
    layer = torch.nn.BatchNorm2d(x.shape[1]).train(training)
    expected = layer(x)
    result = firebrick.compile(lambda x: layer(x))(x)
    assert result.stride() == expected.stride()
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("shape", [(5, 3, 4), (5, 3, 2, 4)])
def test_rows_that_are_permuted_give_contiguous_ones(shape):
    """Capture took the strides of the argument for those of the result, with which the view would have been right."""
    layer = torch.nn.BatchNorm1d(4) if len(shape) == 3 else torch.nn.BatchNorm2d(4)

    def fn(x):
        return layer(x.transpose(1, -1)).transpose(1, -1).view(-1)

    for compile in (lambda f: f, firebrick.compile):
        with pytest.raises(RuntimeError, match="view size is not compatible"):
            compile(fn)(torch.randn(shape))
