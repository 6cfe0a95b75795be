"""float16 on a CPU without instructions for it: products are float32's, rounded once."""

import pytest
import torch
from torch import nn

import firebrick
from firebrick.passes import integers

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
