"""`x[mask] = value` was looked at as a view of a size that depends on the mask, and fell back to plain Python."""

import torch

import firebrick


def test_write_under_a_mask():
    def function(x, index):
        y = x * 2
        y[y > 1] = 0
        y[:, [0, 2]] = 7
        y[index] += x[index]
        return y

    before = firebrick.graphs_compiled()
    x, index = torch.arange(-3.0, 3.0).reshape(2, 3), torch.tensor([1])
    got = firebrick.compile(function, options={"strict": True}, fullgraph=True)(x, index)
    assert torch.equal(got, function(x, index))
    assert firebrick.graphs_compiled() == before + 1
