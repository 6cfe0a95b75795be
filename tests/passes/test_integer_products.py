"""Products of bytes by constant weights: every tail and value, and the spellings of quantized numbers."""

import importlib

import pytest
import torch
from torch import nn
from vectors import needs_vectors

import firebrick
from firebrick.passes import Int8Linear
from firebrick.targets.cpu.cpu_target import _SIMD
from firebrick.targets.cpu.panel_kernel import PANEL_COLUMNS
from firebrick.targets.cpu.processor import features

pytestmark = [pytest.mark.compiler, needs_vectors, pytest.mark.filterwarnings("ignore")]
LEVELS = [name for name, row in _SIMD.items() if row.needs <= features() and row.vector_bytes in PANEL_COLUMNS]
SHAPES = [(1, 1, 1), (1, 768, 96), (5, 17, 33), (6, 16, 16), (7, 2, 31), (13, 64, 48), (29, 1100, 40), (300, 33, 20),
          (20, 2049, 100), (18, 4000, 300)]  # fmt: skip
"""Rows, inner, outer: whole and broken tiles and panels, odd sums, several pieces of a sum, rows and columns shared."""

importlib.import_module("torch.ao.quantization.fx._decomposed")
Q = torch.ops.quantized_decomposed


class Weights(nn.Module):
    """Int8 weights of a layer with a scale and a point an output. function: of the module and its input."""

    def __init__(self, inner, outer, function=None, point=0):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Buffer(torch.randint(-128, 128, (outer, inner)).to(torch.int8))
        self.weight[0], self.weight[-1] = 127, -128
        self.scales, self.bias = nn.Buffer(torch.rand(outer) * 0.01 + 0.001), nn.Buffer(torch.randn(outer))
        self.points = nn.Buffer(torch.full((outer,), point))
        self.function = function

    def wide(self):
        return Q.dequantize_per_channel(self.weight, self.scales, self.points, 0, -128, 127, torch.int8)

    def forward(self, x):
        return self.function(self, x)


def products():
    return firebrick.stats()["counts"].get("int8 products", 0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("sizes", [False, True])
def test_sums_are_exact(level, dtype, sizes):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    for rows, inner, outer in SHAPES:
        model = Weights(inner, outer, lambda m, x: (x.float() @ m.weight.float().t()) * 1.0)
        run = firebrick.compile(model, dynamic=sizes, options={"cache": False, "simd": level})
        before = products()
        for n in (rows, rows + 3) if sizes else (rows,):
            x = torch.randint(low, high + 1, (n, inner + 5)).to(dtype)[:, 2 : inner + 2]
            x[0], x[-1] = high, low
            wanted = x.long() @ model.weight.long().t()
            assert torch.equal(run(x), wanted.float())
        assert products() > before


@pytest.mark.parametrize("turned", [False, True])
def test_int_mm(turned):
    model = Weights(64, 48, lambda m, x: torch._int_mm(x, m.weight.t() if not turned else m.weight))
    model.weight = nn.Buffer(model.weight.t().contiguous()) if turned else model.weight
    x, before = torch.randint(-128, 128, (20, 64)).to(torch.int8), products()
    out = firebrick.compile(model, fullgraph=True, options={"cache": False})(x)
    assert out.dtype is torch.int32
    assert torch.equal(out, model(x))
    assert products() == before + 1


def static(m, x):
    bytes_of_x = Q.quantize_per_tensor(x, 0.03, 3, 0, 255, torch.uint8)
    wide = Q.dequantize_per_tensor(bytes_of_x, 0.03, 3, 0, 255, torch.uint8)
    y = torch.relu(nn.functional.linear(wide, m.wide(), m.bias))
    return Q.dequantize_per_tensor(Q.quantize_per_tensor(y, 2.0, 7, 0, 255, torch.uint8), 2.0, 7, 0, 255, torch.uint8)


def dynamic(m, x):
    how = (*Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8), -128, 127, torch.int8)
    return nn.functional.linear(Q.dequantize_per_tensor.tensor(Q.quantize_per_tensor.tensor(x, *how), *how), m.wide())


def by_token(m, x):
    scales, points = Q._choose_qparams_per_token_asymmetric_impl(x, torch.int8)
    y = Q.quantize_per_token(x, scales, points, -128, 127, torch.int8)
    wide = Q.dequantize_per_token(y, scales, points, -128, 127, torch.int8, torch.float32)
    return nn.functional.linear(wide, m.wide(), m.bias)


def symmetric(m, x):
    """As torchao's dynamic linear layers spell it."""
    step = x.abs().amax(-1, keepdim=True).clamp_min(1e-5) / 127
    rows = torch.clamp(torch.round(x / step), -127, 127).to(torch.int8)
    product = torch._int_mm(rows.flatten(0, -2), m.weight.t())
    return (product.view(*x.shape[:-1], -1) * step) * m.scales + m.bias


@pytest.mark.parametrize("function", [static, dynamic, by_token, symmetric])
@pytest.mark.parametrize("point", [0, 5])
@pytest.mark.parametrize("sizes", [False, True])
def test_quantized_products_are_as_near_as_eagers(function, point, sizes):
    model = Weights(64, 48, function, point)
    with torch.no_grad():
        run = firebrick.compile(model, fullgraph=True, dynamic=sizes, options={"cache": False})
        for shape in ((2, 20, 64), (20, 64), (3, 9, 64)):
            x, before = torch.randn(shape), products()
            out, wanted = run(x), model(x)
            torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-4)
            assert products() == before + 1 or (sizes and shape == (3, 9, 64))


def test_eager_numerics_keeps_the_order_of_eagers_products():
    model, x, before = Weights(64, 48, by_token), torch.randn(20, 64), products()
    with torch.no_grad():
        out = firebrick.compile(model, options={"cache": False, "numerics": "eager"})(x)
        assert torch.equal(out, model(x))
    assert products() == before


@pytest.mark.parametrize("scale", ["of inner", "of a block"])
def test_scales_along_the_sum_are_left_alone(scale):
    def function(m, x):
        bytes_of_x = torch.round(x * 10).to(torch.int8)
        along = torch.arange(1, 65) * 0.01
        wide = bytes_of_x.float() * along if scale == "of inner" else bytes_of_x.float() * 0.1
        weight = m.weight.float() * (along if scale == "of a block" else 0.01)
        return wide @ weight.t()

    model, x = Weights(64, 48, function), torch.randn(20, 64)
    with torch.no_grad():
        out = firebrick.compile(model, options={"cache": False})(x)
        torch.testing.assert_close(out, model(x), rtol=1e-5, atol=1e-4)


def test_quantized_layers_of_a_model_run_on_the_kernel():
    torch.manual_seed(0)
    layer, x, before = nn.Linear(64, 48), torch.randn(4, 7, 64), products()
    with torch.no_grad():
        model = nn.Sequential(Int8Linear(layer), nn.GELU())
        out = firebrick.compile(model, fullgraph=True, options={"cache": False})(x)
        torch.testing.assert_close(out, model(x), rtol=1e-5, atol=1e-5)
        assert (out - nn.functional.gelu(layer(x))).abs().max() < 0.05
    assert products() == before + 1
