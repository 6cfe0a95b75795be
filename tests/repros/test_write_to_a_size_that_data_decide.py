"""A write to a tensor whose size data decide raised DataDecides out of the compiled function: whether the memory is met
twice was asked of the size."""

import torch

import firebrick


def column(x):
    keep = x[x > 0]
    rows = torch.zeros(keep.shape[0], 2)
    rows[:, 0] += 1
    rows += keep.unsqueeze(1)
    row = torch.zeros(1, keep.shape[0])
    row += 1
    return rows.sum(), row.sum()


def test_it_is_compiled_or_left_to_python():
    x = torch.tensor([1.0, -2.0, 3.0, -4.0])
    with torch.no_grad():
        assert firebrick.compile(column, options={"strict": True})(x) == column(x)
