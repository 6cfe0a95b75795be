"""A residual of another layout than the matmul that it is added in: what followed went by eager's strides of the sum.

Views of a convolution's result that count in memory, and random numbers in the order of it, went by channels last.
"""

import pytest
import torch
from torch import nn

from repros.same import same


def _module(kind, *sizes):
    torch.manual_seed(0)
    return kind(*sizes).eval()


TURNED = torch.linspace(-2, 2, 2 * 16 * 9).reshape(2, 16, 9).transpose(1, 2)
LINEAR, NORM = _module(nn.Linear, 16, 16), _module(nn.LayerNorm, 16)
ATTENTION = nn.MultiheadAttention(16, 4, batch_first=True).eval()
CONVOLUTION = _module(nn.Conv2d, 16, 16, 3, 1, 1)
IMAGES = torch.linspace(-1, 1, 2 * 16 * 12 * 12).reshape(2, 16, 12, 12)


@pytest.mark.parametrize("behind", [lambda y: y, lambda y: y.mT.contiguous(), lambda y: y.relu().mT + 1])
@pytest.mark.parametrize(
    "layer",
    [
        lambda h: h + LINEAR(NORM(h)),
        lambda h: LINEAR(h.sin()) + h,
        lambda h: h + ATTENTION(h, h, h)[0],
        lambda h: h[0] + LINEAR(h[0].sin()),
    ],
)
def test_results_lie_as_in_eager(layer, behind):
    with torch.no_grad():
        same(lambda h: behind(layer(h)), TURNED)


def _noisy(x):
    torch.manual_seed(0)
    y = CONVOLUTION(x)
    return y + torch.rand_like(y)


@pytest.mark.parametrize("program", [lambda x: CONVOLUTION(x).as_strided((5, 7), (7, 1), 3) + 0, _noisy])
def test_what_goes_by_memory_sees_eager_s(program):
    with torch.no_grad():
        same(program, IMAGES, strict=False)


def test_an_activation_of_a_view_with_gaps_has_none():
    with torch.no_grad():
        same(lambda x: torch.relu(LINEAR(x)[..., 3:]), TURNED.contiguous())
