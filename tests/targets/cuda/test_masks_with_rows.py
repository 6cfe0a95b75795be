"""Attention on a GPU gets masks that its kernels take."""

import math

import pytest
import torch
from torch._subclasses import FakeTensorMode

from firebrick.trace import attention_recipes
from firebrick.trace.attention_recipes import attention_functions


@pytest.fixture
def seen(monkeypatch):
    masks = []
    monkeypatch.setattr(
        attention_recipes,
        "scaled_dot_product_attention",
        lambda q, k, v, m, *rest, **named: masks.append((m, rest, named)),
    )
    return masks


def call(mask, *rest, **named):
    (function,) = attention_functions({}).values()
    return function(None, None, None, mask, *rest, **named)


def test_its_values_are_the_same(seen, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    for mask in (
        torch.randn(1, 1, 8, 1).expand(4, 2, 8, 8),
        (torch.randn(1, 1, 8, 1) > 0).expand(4, 2, 8, 8),
        torch.randn(4, 1, 8, 6).transpose(-1, -2).expand(4, 3, 6, 8),
        torch.randn(1, 6).expand(5, 6).t(),
        torch.randn(()).expand(2, 3, 4, 5),
    ):
        call(mask, 0.0, scale=2.0)
        made, rest, named = seen.pop()
        assert (rest, named) == ((0.0,), {"scale": 2.0})
        leading = [n for n, step in zip(mask.shape, mask.stride(), strict=True) if step == 0][:-1]
        assert made.untyped_storage().nbytes() * math.prod(leading) <= mask.numel() * mask.element_size()
        assert torch.equal(made, mask) and made.stride(-1) == 1


def test_others_are_left_alone(seen):
    with FakeTensorMode():
        assert call(None) is NotImplemented
        assert call(torch.empty(4, 1, 1, 8, device="cuda").expand(4, 2, 8, 8)) is NotImplemented
        assert call(torch.empty(4, 8, 1).expand(4, 8, 8)) is NotImplemented
    assert not seen
