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
