"""Clipping of gradients is captured with the optimizer's step, one graph for all of them."""

import pytest
import torch
from torch import nn
from torch.nn import utils

import firebrick


class Mixed(nn.Module):
    """Weights of two types: gradients of each are a list of their own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2).double()

    def forward(self, x):
        return self.b(self.a(x).double())


CLIPS = {
    "norm": lambda p: utils.clip_grad_norm_(p, 0.1),
    "norm of lists": lambda p: utils.clip_grad_norm_(p, 0.1, foreach=True),
    "largest": lambda p: utils.clip_grad_norm_(p, 0.1, norm_type=float("inf")),
    "value": lambda p: utils.clip_grad_value_(p, 0.01),
    "total": lambda p: utils.clip_grads_with_norm_(p, 0.1, utils.get_total_norm([q.grad for q in p])),
}


@pytest.mark.parametrize("name", CLIPS)
def test_clip_and_step_are_one_graph(name):
    rows = []
    for backend in (None, "eager"):
        net = Mixed()
        parameters = list(net.parameters())
        optimizer = torch.optim.SGD(parameters, 0.1, momentum=0.9)

        def update(parameters=parameters, optimizer=optimizer):
            norm = CLIPS[name](parameters)
            optimizer.step()
            return norm

        run = update if backend is None else firebrick.compile(update, backend=backend, fullgraph=True)
        for i in range(3):
            optimizer.zero_grad()
            net(torch.full((2, 3), i + 1.0)).square().mean().backward()
            norm = run()
        rows.append([*parameters, *([] if norm is None else [norm])])
    for mine, plain in zip(*rows, strict=True):
        torch.testing.assert_close(mine, plain)


def test_no_gradients_are_the_error_of_eager_mode():
    for run in (utils.clip_grad_value_, firebrick.compile(utils.clip_grad_value_, backend="eager")):
        with pytest.raises(RuntimeError, match="nested_tensorlist"):
            run(list(Mixed().parameters()), 0.1)
