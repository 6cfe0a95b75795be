"""Of equal values one is reshaped in place: the others took its shape too, and calls on it were taken for earlier ones."""

import pytest
import torch

from repros.same import same

aten = torch.ops.aten


def _later(a):
    t = a + 1
    aten.unsqueeze_(t, 2)
    return t, aten.unsqueeze_(a + 1, 0)


def _before(a):
    t, u = a + 1, a + 1
    t.unsqueeze_(0)
    return t, u, u * 2


def _view(a):
    y, z = a * 2, a * 2
    parts = [y.t(), z.t()]
    parts[0].squeeze_(0).unsqueeze_(1)
    return *parts, parts[1] + 1


def _called_again(a):
    y, t = a * 2, a + 1
    t.unsqueeze_(2)
    return y, t * 2, t.t_() if t.dim() < 3 else t.transpose_(0, 2), t + 1


@pytest.mark.parametrize("program", [_later, _before, _view, _called_again])
def test_the_others_keep_their_shapes(program):
    with torch.no_grad():
        same(program, torch.linspace(0, 1, 12).view(3, 4))
