"""The cast of a weight that capture's fakes left in autocast's cache reached the trace of a region inside of another."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("layer", [torch.nn.Linear, torch.nn.GRU])
@pytest.mark.parametrize("later_grad", [False, True])
def test_a_region_inside_of_another_runs_in_both_grad_modes(layer, later_grad):
    module, x = layer(5, 6), torch.randn(4, 3, 5)

    def call(x):
        with torch.autocast("cpu", torch.bfloat16):
            result = module(x)
        return result[0] if isinstance(result, tuple) else result

    for grad in (not later_grad, later_grad):
        with torch.set_grad_enabled(grad), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(firebrick.compile(call)(x), call(x), rtol=0.02, atol=0.01)
