"""Where sizes were symbols, the results of an LSTM, GRU or RNN had no gradients: nothing said that they wanted some."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
def test_results_require_gradients(kind):
    layer = kind(4, 4, batch_first=True)

    def fn(x, factor):
        return layer(x * factor)[0]

    compiled = firebrick.compile(fn)
    for batch, factor in ((5, 4), (4, 5), (3, 6)):
        x = torch.randn(batch, 4, 4, requires_grad=True)
        expected = torch.autograd.grad(fn(x, factor).sum(), [x, *layer.parameters()])
        result = compiled(x, factor)
        assert result.requires_grad
        assert result.grad_fn is not None
        torch.testing.assert_close(torch.autograd.grad(result.sum(), [x, *layer.parameters()]), expected)
