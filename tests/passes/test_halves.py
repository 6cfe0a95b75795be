"""float16 and bfloat16 on a CPU without instructions for them: products are float32's, rounded once."""

import pytest
import torch
from torch import nn
from vectors import needs_vectors

import firebrick
from firebrick.passes import integers, tuning
from firebrick.targets.cpu.cpu_target import CpuTarget

pytestmark = [pytest.mark.compiler]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 1)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32, bias=False)

    def forward(self, x):
        y = self.second(torch.relu(self.norm(self.first(x)))).flatten(2).mT
        y = y + self.down(torch.nn.functional.gelu(self.up(y)))
        return torch.nn.functional.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None])


@pytest.fixture(params=[False, True])
def native(request, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: request.param)
    return request.param


@pytest.mark.parametrize("last", [False, True])
def test_products_are_rounded_once(native, last):
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 12, 10)
    if last:
        x = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        exact = model.double()(x.double())
        half, x = model.half(), x.half()
        wanted, out = half(x), firebrick.compile(half, fullgraph=True, options={"cache": False})(x)
    assert out.dtype is torch.float16
    assert out.stride() == wanted.stride()
    assert (out - exact).abs().max() <= 1.5 * (wanted - exact).abs().max()


def test_sizes_that_differ(native):
    layer = nn.Linear(16, 24).half()
    run = firebrick.compile(layer, dynamic=True, fullgraph=True, options={"cache": False})
    with torch.no_grad():
        for rows in (3, 8):
            x = torch.randn(rows, 16).half()
            torch.testing.assert_close(run(x), layer(x))


def test_training(native):
    model, x = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 8)).half(), torch.randn(5, 16).half()
    firebrick.compile(model, fullgraph=True, options={"cache": False})(x).sum().backward()
    compiled = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for a, p in zip(compiled, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, rtol=5e-3, atol=5e-3)


def test_eager_numerics_keep_the_librarys_products(monkeypatch):
    monkeypatch.setattr(integers, "_HALVES", None)  # not asked for
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    layer, x = nn.Linear(16, 24).half(), torch.randn(5, 16).half()
    with torch.no_grad():
        run = firebrick.compile(layer, fullgraph=True, options={"cache": False, "numerics": "eager"})
        assert torch.equal(run(x), layer(x))


@needs_vectors
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("sizes", [None, True])
def test_bfloat16_below_the_level_of_its_instructions(last, sizes):
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(2, 3, 12, 10)
    x = x.to(memory_format=torch.channels_last) if last else x
    with torch.no_grad():
        exact = model.double()(x.double())
        half, x = model.bfloat16(), x.bfloat16()
        options = {"cache": False, "simd": "avx2"}
        wanted, out = half(x), firebrick.compile(half, fullgraph=True, dynamic=sizes, options=options)(x)
    assert out.dtype is torch.bfloat16
    assert out.stride() == wanted.stride()
    assert (out - exact).abs().max() <= 1.5 * (wanted - exact).abs().max()


@needs_vectors
@pytest.mark.parametrize("rows", [1, 200])
@pytest.mark.parametrize("bias", [False, True])
def test_the_wide_form_is_one_of_those_that_are_measured(rows, bias, monkeypatch, tmp_path):
    layer, x, offered = nn.Linear(512, 256, bias).bfloat16(), torch.randn(rows, 512).bfloat16(), []

    def measured(self, op, args, forms, config):
        offered.append(set(forms))
        return {form: 1.0 if form == "wide" else 2.0 for form in forms}

    monkeypatch.setattr(CpuTarget, "measured", measured)
    monkeypatch.setattr(tuning, "chosen", {})
    with torch.no_grad():
        out = firebrick.compile(layer, options={"cache_dir": tmp_path, "simd": "avx2", "measure": True})(x)
        exact = layer.double()(x.double())
    assert {"own", "wide"} <= offered[0]
    assert len(offered) == 2, "the product in float32 has a form of its own"
    assert (out - exact).abs().max() <= 0.5 / 128 * exact.abs().max()


@needs_vectors
def test_an_activation_is_in_the_kernel_whose_results_are_rounded(monkeypatch, tmp_path, caplog):
    model, x = nn.Sequential(nn.Linear(512, 256), nn.GELU()).bfloat16(), torch.randn(200, 512).bfloat16()
    monkeypatch.setattr(CpuTarget, "measured", lambda self, op, args, forms, config: _times(forms))
    monkeypatch.setattr(tuning, "chosen", {})
    options = {"cache_dir": tmp_path, "simd": "avx2", "measure": True, "debug": "aten"}
    with torch.no_grad():
        wanted, out = model(x), firebrick.compile(model, options=options)(x)
        exact = model.double()(x.double())
    assert "firebrick.linear" in caplog.text
    assert "gelu(" not in caplog.text
    assert (out - exact).abs().max() <= (wanted - exact).abs().max()


def _times(forms):
    best = "wide" if "wide" in forms else "own"
    return {form: 1.0 if form == best else 2.0 for form in forms}
