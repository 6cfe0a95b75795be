"""A block of loads that was turned for the lanes had an index of a loop inside, which has not begun there."""

import torch
from torch import nn

import firebrick


def test_batch_norm_of_a_permuted_image():
    x = torch.randn(6, 3, 2, 6).permute(2, 1, 3, 0)
    norm, other = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    torch.testing.assert_close(firebrick.compile(norm, options={"strict": True})(x), other(x))
    torch.testing.assert_close(norm.running_var, other.running_var)
