"""Other backends' results were views to autograd where the graph's last call made one: writes to them were refused."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("backend", ["firebrick", "aot_eager"])
def test_a_result_is_written_to_behind_the_graph(backend):
    def transposed(x):
        y = x.sin().transpose(0, 1)
        firebrick.graph_break()
        y.mul_(2)
        return y

    def written(x):
        y = x + torch.linspace(0, 1, x.shape[1])[:, None]
        y.transpose(0, 1)[0].mul_(3)
        firebrick.graph_break()
        y[:, -1].mul_(2)
        return y

    for function in (transposed, written):
        gradients = []
        for f in (function, firebrick.compile(function, backend=backend)):
            x = torch.linspace(-1, 1, 48).view(2, 3, 8)[..., ::2].requires_grad_()
            f(x).square().sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)
