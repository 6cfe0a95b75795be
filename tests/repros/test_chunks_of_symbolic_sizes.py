"""Halves of a dimension that is a symbol are one graph for all sizes, and libraries' own code may be asked for numbers."""

import pytest
import torch
from torch.nn import functional as F

import firebrick


def gated(x):
    value, gate = x.chunk(2, -1)
    return value * torch.sigmoid(gate)


def resized(x):
    return F.interpolate(x[None, None], size=(x.shape[0] + 1, x.shape[1]), mode="bicubic")


@pytest.mark.parametrize("function", [gated, resized])
def test_one_compile_serves_all_sizes(function):
    before = firebrick.graphs_compiled()
    compiled = firebrick.compile(function, dynamic=True, fullgraph=True)
    for shape in ((5, 4), (6, 8), (9, 6)):
        x = torch.randn(*shape)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    assert firebrick.graphs_compiled() - before <= 2


def test_parts_of_other_numbers_are_compiled_anew():
    compiled = firebrick.compile(lambda x: [part * 2 for part in x.split(2)], dynamic=True)
    for n in (5, 6, 9, 4, 1):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), [part * 2 for part in x.split(2)])


def test_a_count_with_as_many_bins_as_data_say_is_one_graph():
    def means(x, groups):
        count = int(groups.max()) + 1
        sums = torch.zeros(count, x.shape[1]).index_add(0, groups, x)
        return sums / torch.bincount(groups, minlength=count)[:, None]

    compiled = firebrick.compile(means, fullgraph=True)
    for groups in ([0, 1, 1, 0], [0, 1, 2, 3], [0, 0, 0, 0]):
        args = torch.randn(4, 3), torch.tensor(groups)
        torch.testing.assert_close(compiled(*args), means(*args))
