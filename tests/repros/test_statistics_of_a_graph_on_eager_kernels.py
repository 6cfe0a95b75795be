"""A graph left to eager kernels whose later call raises updates statistics once; `tests.fuzz --seeds 20003724`."""

import copy

import pytest
import torch
from torch import nn

import firebrick


@pytest.mark.compiler
@pytest.mark.parametrize("grad", [False, True])
def test_statistics_are_updated_once(grad):
    def program(norm):
        def run(x):
            y = norm(x).softmax(-1)
            y.unsqueeze_(-1)
            try:
                torch.linalg.inv(torch.zeros(2, 2))
            except RuntimeError:
                return y * 2

        return run

    ours = nn.BatchNorm2d(4)
    eager = copy.deepcopy(ours)
    x = torch.randn(1, 4, 5, 8, requires_grad=grad)
    torch.testing.assert_close(firebrick.compile(program(ours))(x), program(eager)(x))
    torch.testing.assert_close(ours.running_mean, eager.running_mean)
    torch.testing.assert_close(ours.running_var, eager.running_var)
