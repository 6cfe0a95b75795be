"""`out=` takes tensors whose sizes are symbols, in one graph."""

import torch

import firebrick


def test_a_cumulative_sum_into_a_part_of_a_tensor():
    def offsets(x):
        out = x.new_empty(x.shape[0] + 1)
        out[:1].zero_()
        torch.cumsum(x, 0, out=out[1:])
        return out * 2

    before = firebrick.graphs_compiled()
    compiled = firebrick.compile(offsets, dynamic=True, fullgraph=True)
    for n in (5, 7, 2):
        x = torch.arange(n) + 1
        assert torch.equal(compiled(x), offsets(x))
    assert firebrick.graphs_compiled() - before == 1


def test_an_out_argument_of_another_size_is_resized_as_in_eager():
    def into(x, out):
        return torch.add(x, 1, out=out)

    compiled = firebrick.compile(into, dynamic=True)
    for n in (5, 7):
        out = torch.empty(0)
        assert torch.equal(compiled(torch.ones(n), out), torch.full((n,), 2.0))
        assert out.shape == (n,)
