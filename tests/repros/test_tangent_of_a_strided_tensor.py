"""`torch.func.jvp` in captured code of a view of a tensor with gaps or an offset hit an assertion of torch."""

import pytest
import torch

import firebrick

NUMBERS = torch.linspace(-1, 1, 25)


@pytest.mark.parametrize("primal", [NUMBERS[:24].view(3, 8)[:, ::2], NUMBERS[1:13].view(3, 4)])
@pytest.mark.parametrize("function", [lambda a: a.t() * 2, lambda a: a @ a.t() + a.sum(), torch.sin])
def test_values_and_tangents(primal, function):
    def run(x, tangent):
        return torch.func.jvp(function, (x,), (tangent,))

    tangent = torch.linspace(0, 1, 12).view(3, 4)
    torch.testing.assert_close(firebrick.compile(run)(primal, tangent), run(primal, tangent))
