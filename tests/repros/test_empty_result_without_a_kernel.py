"""A result without elements that no kernel writes was never allocated, and the process died."""

import torch

import firebrick


def test_empty_sum_of_two():
    x = torch.empty(0, 3)
    made = firebrick.compile(lambda x: (x + 1, x.sum()))(x)
    assert made[0].shape == (0, 3)
    assert made[1].item() == 0


def test_only_empty_results():
    made = firebrick.compile(lambda x, y: x * y)(torch.empty(0, 3), torch.ones(1, 1))
    assert made.shape == (0, 3)
