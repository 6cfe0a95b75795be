"""Results behind a write to an argument with gaps and swapped axes; `tests.fuzz --seeds 20015910`."""

import pytest
import torch

import firebrick


def through_a_view(t):
    t.t().sub_(0.5)
    return t * 2, torch.full_like(t, 0.5)


def itself(t):
    t.sub_(0.5)
    return t * 2, torch.full_like(t, 0.5)


@pytest.mark.compiler
@pytest.mark.parametrize("fn", [through_a_view, itself])
def test_results_lie_as_in_eager(fn):
    base = torch.randn(6, 6)
    ours, eager = base.clone(), base.clone()
    for result, expected in zip(firebrick.compile(fn)(ours[1:5, 1:5].t()), fn(eager[1:5, 1:5].t()), strict=True):
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride()
    assert torch.equal(ours, eager)


@pytest.mark.compiler
def test_an_expanded_result_stays_expanded():
    x = torch.randn(3, 4)
    assert firebrick.compile(lambda x: (x + x.sigmoid()).expand(2, -1, -1))(x).stride() == (0, 4, 1)
