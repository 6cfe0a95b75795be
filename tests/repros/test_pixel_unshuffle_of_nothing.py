"""`pixel_unshuffle` of no elements had the sizes that it should have; eager's has those of its argument."""

import torch
import torch.nn.functional as F

import firebrick


def test_sizes_are_eagers():
    x = torch.empty(0, 1, 6, 6)
    made = firebrick.compile(lambda x: F.pixel_unshuffle(x, 3) + 1)(x)
    assert made.shape == F.pixel_unshuffle(x, 3).shape


def test_of_something():
    x = torch.randn(2, 1, 6, 6)
    made = firebrick.compile(lambda x: F.pixel_unshuffle(x, 3))(x)
    assert torch.equal(made, F.pixel_unshuffle(x, 3))
