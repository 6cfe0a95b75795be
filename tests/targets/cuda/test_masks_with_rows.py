"""Attention on a GPU gets masks that its kernels take."""

import math

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from firebrick.config import Config
from firebrick.lower import lower
from firebrick.passes import run_passes
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS
from firebrick.trace import attention_recipes, trace_inference
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


@pytest.mark.parametrize("layers", [1, 3])
def test_rows_of_odd_length_begin_at_multiples(layers):
    """In eager mode the mask is a part of a padded one: stored without gaps it was refused at each call, so that the
    program fell back to eager kernels."""

    def attend(q, see, bias):
        made = []
        for mask in (torch.where(see, 0.0, -1e4), bias.expand(2, 1, 17, 17)):
            mask = torch.nn.functional.pad(mask, (0, 7))[..., :17].expand(2, 4, 17, 17)
            call = torch.ops.aten._scaled_dot_product_efficient_attention
            made += [call(q, q, q, mask, False, scale=k + 1.0)[0] for k in range(layers)]
        return made

    config, targets = Config(), {"cpu": CudaTarget(CARDS[90])}
    inputs = [torch.randn(2, 4, 17, 16), torch.randn(2, 1, 17, 17) > 0, torch.randn(1, 17)]
    graph = run_passes(trace_inference(fx.symbolic_trace(attend), inputs, config), targets, config)
    program = lower(graph, targets, config)
    masks = [call.args[3] for call in program.nodes if hasattr(call, "op")]
    assert len(masks) == 2 * layers and len({m.buffer for m in masks}) == 2
    for mask in masks:
        assert [int(s.const) for s in mask.strides] == [408, 0, 24, 1]
