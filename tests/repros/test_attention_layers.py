"""PyTorch's layers of attention in inference: their fused ops broke the graph, hid a missing result, and stayed whole."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import fx, nn

import firebrick
from firebrick.config import Config
from firebrick.trace import trace_inference


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def check(layer: nn.Module, call: Any) -> None:
    """Compiled in one graph, with at most 1.1 times eager's error, and nothing where eager has nothing."""
    x = torch.randn(2, 9, 16)
    wide = copy.deepcopy(layer).double()
    with torch.no_grad():
        compiled = firebrick.compile(lambda t: call(layer, t), fullgraph=True)
        for found, eager, exact in zip(*map(flat, (compiled(x), call(layer, x), call(wide, x.double()))), strict=True):
            assert (found is None) == (eager is None)
            if found is not None:
                assert torch.equal(found.isnan(), eager.isnan())
                found, eager, exact = (t.nan_to_num() for t in (found, eager, exact))
                assert (found - exact).abs().max() <= 1.1 * (eager - exact).abs().max() + 1e-6
                assert found.stride() == eager.stride()


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}], ids=str)
def test_multihead_attention_is_one_graph(options: dict[str, Any]) -> None:
    layer = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    check(layer, lambda m, t: m(t, t, t, **options))
    check(layer, lambda m, t: m(t, t[:, :5], t[:, :5], **options))
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    ends = torch.arange(9) >= torch.tensor([[5], [0]])  # nothing is left of the second
    check(layer, lambda m, t: m(t, t, t, key_padding_mask=ends, **options))
    check(layer, lambda m, t: m(t, t, t, attn_mask=later, **options))
    check(layer, lambda m, t: m(t, t, t, attn_mask=later, key_padding_mask=ends, **options))
    weights = torch.randn(9, 9)  # eager hides where they are not 0
    check(layer, lambda m, t: m(t, t, t, attn_mask=weights.relu().to(t.dtype), **options))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layers_are_taken_apart(norm_first: bool, activation: Any) -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, activation=activation, norm_first=norm_first, batch_first=True)
    layer.eval()
    check(layer, lambda m, t: m(t))
    check(layer, lambda m, t: m(t, src_mask=torch.ones(9, 9, dtype=torch.bool).triu(1), is_causal=True))
    check(layer, lambda m, t: m(t, src_key_padding_mask=torch.arange(9) >= torch.tensor([[5], [7]])))
    graphs = []

    def keep(gm: fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(trace_inference(gm, inputs, Config()).gm.graph)
        return gm.forward

    with torch.no_grad():
        firebrick.compile(layer, backend=keep)(torch.randn(2, 9, 16))
    assert "aten.native_layer_norm.default" in [str(node.target) for node in graphs[0].nodes]


def test_no_user_mode_is_on_where_code_is_captured() -> None:
    def call(x: torch.Tensor) -> Any:
        return x + len(torch.utils._python_dispatch._get_current_dispatch_mode_stack())

    x = torch.randn(3)
    assert torch.equal(firebrick.compile(call, fullgraph=True)(x), x)
