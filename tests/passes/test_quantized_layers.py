"""int8: torch.ao's dynamic linear layers, graphs of quantize and dequantize, and `passes.quantize`."""

import gc
import importlib
import warnings
import weakref

import pytest
import torch
from torch import nn
from vectors import needs_vectors

import firebrick
from firebrick import passes
from firebrick.passes import Int8Linear
from firebrick.runtime.quantized import Int8Conv2d

pytestmark = [pytest.mark.compiler, pytest.mark.filterwarnings("ignore")]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 96, bias=False)

    def forward(self, x):
        return torch.softmax(self.down(torch.relu(self.up(x))), -1)


def dynamic(model, by_channel=False):
    quantization = importlib.import_module("torch.ao.quantization")
    config = quantization.per_channel_dynamic_qconfig if by_channel else quantization.default_dynamic_qconfig
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantization.quantize_dynamic(model.eval(), {nn.Linear: config})


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("sizes", [False, True])
def test_dynamic_layers_are_one_graph_of_int8_products(by_channel, sizes):
    model = dynamic(Net(), by_channel)
    with torch.no_grad():
        run = firebrick.compile(model, fullgraph=True, dynamic=sizes, options={"cache": False})
        for shape in ((20, 64), (3, 7, 64)):
            x = torch.randn(shape)
            parts = model.down(torch.relu(model.up(x)))
            torch.testing.assert_close(run(x), torch.softmax(parts, -1), rtol=1e-5, atol=1e-6)
        only = firebrick.compile(lambda x: model.up(x), fullgraph=True, options={"cache": False})
        torch.testing.assert_close(only(x), model.up(x), rtol=1e-6, atol=1e-6)


def test_other_packed_weights_are_another_entry():
    one, other = dynamic(Net()), dynamic(Net())
    run, x = firebrick.compile(one, options={"cache": False}), torch.randn(5, 64)
    with torch.no_grad():
        torch.testing.assert_close(run(x), one(x))
        one.up._packed_params._packed_params = other.up._packed_params._packed_params
        torch.testing.assert_close(run(x), one(x))


def test_packed_weights_live_no_longer_than_their_model():
    model, x = dynamic(Net()), torch.randn(5, 64)
    gone = weakref.ref(model.up._packed_params._packed_params)
    with torch.no_grad():
        firebrick.compile(model, options={"cache": False})(x)
    del model
    firebrick.reset()
    gc.collect()
    assert gone() is None


def test_dynamic_layers_go_into_files(tmp_path):
    model, x = dynamic(Net()), torch.randn(5, 64)
    run = firebrick.compile(model)
    with torch.no_grad():
        run(x)
        firebrick.save(run, tmp_path / "bundle.fb")
        torch.testing.assert_close(firebrick.load(tmp_path / "bundle.fb")(x), model(x))


importlib.import_module("torch.ao.quantization.fx._decomposed")
Q = torch.ops.quantized_decomposed


def by_tensor(x):
    y = Q.quantize_per_tensor(x, 0.03, 3, 0, 255, torch.uint8)
    return y, Q.dequantize_per_tensor(y, 0.03, 3, 0, 255, torch.uint8)


def by_channel(x):
    scales = x.abs().amax(0) / 127
    y = Q.quantize_per_channel(x, scales, torch.zeros(64, dtype=torch.int64), 1, -127, 127, torch.int8)
    return y, Q.dequantize_per_channel(y, scales, None, 1, -127, 127, torch.int8)


def by_token(x):
    scales, points = Q._choose_qparams_per_token_asymmetric_impl(x, torch.int8)
    y = Q.quantize_per_token(x, scales, points, -128, 127, torch.int8)
    return y, Q.dequantize_per_token(y, scales, points, -128, 127, torch.int8, torch.float32)


def chosen(x):
    scale, point = Q.choose_qparams.tensor(x, -128, 127, 1e-5, torch.int8)
    y = Q.quantize_per_tensor.tensor(x, scale, point, -128, 127, torch.int8)
    return y, Q.dequantize_per_tensor.tensor(y, scale, point, -128, 127, torch.int8)


@pytest.mark.parametrize("function", [by_tensor, by_channel, by_token, chosen])
@pytest.mark.parametrize("numerics", ["default", "eager"])
def test_quantize_and_dequantize_have_eagers_bits(function, numerics):
    x = torch.randn(20, 64)
    x[0] = torch.arange(64) * 0.03 * 0.5  # halves between two steps
    run = firebrick.compile(function, fullgraph=True, options={"cache": False, "numerics": numerics})
    for mine, theirs in zip(run(x), function(x), strict=True):
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine, theirs)


def test_quantize_and_dequantize_are_fused():
    firebrick.reset()
    before = firebrick.stats()["counts"].get("launches", 0)
    firebrick.compile(lambda x: by_tensor(torch.relu(x))[1] + 1, options={"cache": False})(torch.randn(20, 64))
    assert firebrick.stats()["counts"]["launches"] == before + 1


def test_quantize_reports_its_error_and_can_be_undone():
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(50, 64)
    with torch.no_grad():
        wanted = model(x)
        report = passes.quantize(model, [x])
        assert [type(m) for m in (model.up, model.down)] == [Int8Linear] * 2
        assert 0 < report.error < 0.05
        exact = (model(x).double() - wanted.double()).abs().max() / wanted.abs().max()
        assert report.error == pytest.approx(exact.item(), rel=1e-3)
        run = firebrick.compile(model, fullgraph=True)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-6)
        report.undo()
        assert torch.equal(model(x), wanted)


def test_quantize_puts_back_what_costs_too_much():
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(50, 64)
    with torch.no_grad():
        model.up.weight[:, 0] *= 1000  # all other products of a sum are rounded away
        x[:, 0] = 0
        x[0, 0] = 0.01
        report = passes.quantize(model, [x], tolerance=0.02)
        assert "up" in report.left
        assert report.error <= 0.02
        none = passes.quantize(Net().eval(), [x], tolerance=0.0)
    assert not none.swaps
    assert none.error == 0.0


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.norm, self.second = nn.BatchNorm2d(64), nn.Conv2d(64, 96, 3, padding=1)
        self.deep = nn.Conv2d(96, 96, 3, padding=1, groups=96)
        self.far, self.unused = nn.Conv2d(96, 64, 3, dilation=2), nn.Conv2d(64, 64, 1)
        self.last = nn.Conv2d(64, 64, 1)
        self.out = nn.Linear(64, 96)

    def forward(self, x):
        x = self.second(torch.relu(self.norm(self.first(x))))
        x = self.last(self.far(self.deep(x)))
        return self.out(x.mean((2, 3)))


@needs_vectors
def test_convolutions_are_quantized_by_their_ranges():
    torch.manual_seed(0)
    model, x = Images().eval(), torch.randn(2, 3, 24, 20)
    with torch.no_grad():
        wanted = model(x)
        report = passes.quantize(model, [x, -x])
        assert {s.name: type(s.new) for s in report.swaps} == {
            **dict.fromkeys(("first", "second", "last"), Int8Conv2d),
            "out": Int8Linear,
        }
        assert [model.first.point, model.second.point, model.last.point] == [128, 0, 128]
        assert set(report.left) == {"unused"}
        assert 0 < report.error < 0.05
        before = firebrick.stats()["counts"].get("int8 products", 0)
        out = firebrick.compile(model, fullgraph=True, options={"cache": False})(x)
        assert firebrick.stats()["counts"]["int8 products"] == before + 4
        torch.testing.assert_close(out, model(x), rtol=0, atol=0.02 * wanted.abs().max().item())
        torch.testing.assert_close(out, wanted, rtol=0, atol=0.05 * wanted.abs().max().item())
        report.undo()
        assert torch.equal(model(x), wanted)


def test_an_int8_convolution_is_near_its_layer():
    torch.manual_seed(0)
    layer, x = nn.Conv2d(64, 64, 3, 2, 1), torch.randn(2, 64, 9, 9).relu()
    with torch.no_grad():
        packed = Int8Conv2d(layer, 0.0, x.max().item())
        exact = layer.double()(x.double())
        assert (packed(x) - exact).abs().max() < 0.02 * exact.abs().max()
        assert packed(x.bfloat16()).dtype is torch.bfloat16


def test_an_int8_layer_is_near_its_layer():
    torch.manual_seed(0)
    layer, x = nn.Linear(256, 64), torch.randn(30, 256)
    packed = Int8Linear(layer)
    with torch.no_grad():
        exact = layer.double()(x.double())
        assert (packed(x) - exact).abs().max() < 0.03 * exact.abs().max()
        assert packed(x.bfloat16()).dtype is torch.bfloat16
