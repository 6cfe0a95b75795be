"""Recurrent layers whose sizes are symbols have gradients, and their batch may be a symbol."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_gradients_over_batches_and_lengths(kind):
    torch.manual_seed(0)
    layer = getattr(torch.nn, kind)(4, 4, batch_first=True)
    compiled = firebrick.compile(lambda x: layer(x)[0])
    for batch, steps in ((5, 3), (5, 4), (2, 3)):
        outcomes = []
        for function in (compiled, lambda x: layer(x)[0]):
            x = torch.randn(batch, steps, 4, generator=torch.Generator().manual_seed(steps)).requires_grad_()
            layer.zero_grad()
            result = function(x)
            result.square().sum().backward()
            outcomes.append([result, x.grad, *(p.grad.clone() for p in layer.parameters())])
        torch.testing.assert_close(*outcomes, rtol=1e-4, atol=1e-5)


def test_sizes_that_are_compared_in_tuples_stay_symbols():
    before = firebrick.graphs_compiled()
    compiled = firebrick.compile(lambda x, y: x + y if x.size() == y.size() else x, dynamic=True)
    for n in (3, 4, 7):
        assert torch.equal(compiled(torch.ones(n, 5), torch.ones(n, 5)), torch.full((n, 5), 2.0))
    assert firebrick.graphs_compiled() - before == 1
