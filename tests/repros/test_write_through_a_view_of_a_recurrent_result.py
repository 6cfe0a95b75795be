"""A view of what a recurrent layer returns was taken to lie in other memory: a write to it came before it counted."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("backend", ["firebrick", "aot_eager"])
def test_second_gradients_of_a_result_written_through_views(backend):
    layer = torch.nn.GRU(4, 4, batch_first=True)

    def function(x):
        y = layer(x)[0]
        y.expand(2, -1, -1, -1)[0].add_(1)
        return y, y.chunk(2, 2)[1].repeat(1, 1, 2)

    def gradient(f):
        x = torch.linspace(-1, 1, 3 * 5 * 4).view(3, 5, 4).requires_grad_()
        loss = sum(t.square().sum() for t in f(x))
        (first,) = torch.autograd.grad(loss, [x], create_graph=True)
        (loss + first.square().sum()).backward()
        return x.grad

    torch.testing.assert_close(gradient(firebrick.compile(function, backend=backend)), gradient(function))
