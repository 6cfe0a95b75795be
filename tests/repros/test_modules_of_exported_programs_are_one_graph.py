"""A module of an exported program took its arguments apart, and checked them, outside of the graph: its graph was cut
twice, and what a quantizer had put before and behind the cuts was computed apart."""

import importlib

import pytest
import torch
from torch import nn

import firebrick

importlib.import_module("torch.ao.quantization.fx._decomposed")
Q = torch.ops.quantized_decomposed
pytestmark = [pytest.mark.compiler, pytest.mark.filterwarnings("ignore")]


class Quantized(nn.Module):
    """As quantizers of exported programs leave a layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Buffer(torch.randint(-127, 128, (48, 64)).to(torch.int8))
        self.scales, self.points = nn.Buffer(torch.rand(48) * 0.01), nn.Buffer(torch.zeros(48, dtype=torch.int64))

    def forward(self, x, more):
        how = (0.03, 128, 0, 255, torch.uint8)
        x = Q.dequantize_per_tensor(Q.quantize_per_tensor(x, *how), *how)
        weight = Q.dequantize_per_channel(self.weight, self.scales, self.points, 0, -127, 127, torch.int8)
        return {"y": torch.relu(nn.functional.linear(x, weight)) + more["bias"]}


def test_one_graph():
    x, more = torch.randn(20, 64), {"bias": torch.randn(48)}
    with torch.no_grad():
        module = torch.export.export(Quantized(), (x, more)).module()
        before = firebrick.stats()["counts"].get("int8 products", 0)
        out = firebrick.compile(module, fullgraph=True, options={"cache": False})(x, more)
        torch.testing.assert_close(out, module(x, more), rtol=1e-5, atol=1e-4)
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        assert firebrick.stats()["counts"]["int8 products"] == before + 1


def test_sizes_are_checked_as_the_program_does():
    rows = torch.export.Dim("rows", min=2, max=8)
    layer = nn.Linear(64, 48)
    module = torch.export.export(layer, (torch.randn(4, 64),), dynamic_shapes={"input": {0: rows}}).module()
    run = firebrick.compile(module, options={"cache": False})
    with torch.no_grad():
        for n in (4, 6):
            x = torch.randn(n, 64)
            torch.testing.assert_close(run(x), module(x))
        for x in (torch.randn(9, 64), torch.randn(4, 63)):
            with pytest.raises((AssertionError, RuntimeError)) as wanted:
                module(x)
            with pytest.raises(type(wanted.value)):
                run(x)
