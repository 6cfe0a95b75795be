"""The frame of a module's `__init__`, captured alone, failed: the object that it fills has no submodules yet."""

import torch

import firebrick

made = []


class Early(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        made.append(value)


def test_a_module_is_made_in_a_function_that_is_not_about_tensors():
    def make(value, other, function):
        module = Early(value)  # noqa: F841

    assert firebrick.compile(make)(1, 1, torch.randn) is None
    assert made == [1]
