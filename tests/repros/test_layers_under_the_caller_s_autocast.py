"""A graph that switches autocast off was computed in 16 bits where its caller had autocast on: library calls looked."""

import pytest
import torch
from torch import nn

import firebrick


@pytest.mark.parametrize("recorded", [False, True])
def test_a_layer_without_autocast(recorded):
    torch.manual_seed(0)
    layer, x = nn.LSTM(64, 128), torch.randn(5, 48, 64)

    def f(x):
        with torch.autocast("cpu", enabled=False):
            return layer(x)[0]

    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(recorded):
        found = firebrick.compile(f, options={"strict": True})(x)
        assert torch.is_autocast_enabled("cpu")
        wanted = f(x)
    assert torch.equal(found, wanted)
