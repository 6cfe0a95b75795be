"""Matmuls of one matrix by several weights are one on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from interpreted import AVAILABLE
from torch import nn

if AVAILABLE:
    from tile_agree import for_a_card

from firebrick.ir.loops.program import Extern

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")


class Attention(nn.Module):
    def __init__(self, width=32, words=1000, bias=True):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.words = nn.Linear(width, words)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (f(x).view(batch, length, 4, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        return self.words(self.o(y)), q


def products(schedule):
    return sum(isinstance(s, Extern) and s.op in ("aten::mm.out", "aten::addmm.out") for s in schedule.steps)


@pytest.mark.parametrize("bias", [True, False])
def test_projections_of_attention_are_one_matmul_that_is_read_where_it_lies(bias):
    net, x = Attention(bias=bias, width=64).eval(), torch.randn(2, 24, 64)
    made, results = for_a_card(net, x)
    assert products(made) == 3
    copies = [s for s in made.steps if not isinstance(s, Extern)]
    assert len(copies) == 1  # the returned one lies as eager's does
    for a, b in zip(results, net(x), strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (Attention(width=64, words=100), torch.randn(2, 24, 64)),  # most of the weights would be there twice
        (Attention(width=64), torch.randn(1, 4, 64)),  # rows are few
    ],
    ids=["memory", "rows"],
)
def test_others_stay_apart(net, x):
    made, _ = for_a_card(net.eval(), x)
    assert products(made) == 5
