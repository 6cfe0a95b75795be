"""Sums by groups, as graph networks take them: whether a tensor of as many rows as there are groups is a view of another
matters where something is written, and asked whether there is one row. Such a graph ran on eager kernels."""

import torch

import firebrick
from firebrick.report import recorder


def mean_of_groups(x, index):
    groups = int(index.max()) + 1
    count = x.new_zeros(groups).scatter_add_(0, index, x.new_ones(index.numel())).clamp_(min=1)
    total = x.new_zeros(groups, x.shape[1]).scatter_add_(0, index.view(-1, 1).expand_as(x), x)
    return total / count.view(-1, 1).expand_as(total)


def eager_runs():
    return sum(n for key, n in recorder.counts.items() if key.startswith("graphs run eagerly"))


def check(function, *groups):
    compiled = firebrick.compile(function, fullgraph=True)
    before = eager_runs()
    for index in groups:
        x, index = torch.randn(len(index), 8), torch.tensor(index)
        torch.testing.assert_close(compiled(x, index), function(x, index))
    return eager_runs() - before


def test_rows_of_each_group():
    assert check(mean_of_groups, [0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 4]) == 0


def test_one_group_and_a_row():
    assert check(mean_of_groups, [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 2, 2]) == 0


def test_one_group_first():
    assert check(mean_of_groups, [0, 0, 0, 0], [0, 1, 2, 3]) == 0
