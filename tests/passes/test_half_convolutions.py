"""Convolutions of bfloat16 by tiles of our own, with what follows them: finished in float32 and rounded once."""

import pytest
import torch
from torch import nn
from vectors import needs_vectors

import firebrick
from firebrick.passes import tuning
from firebrick.targets import by_device
from firebrick.targets.cpu.cpu_target import CpuTarget, runs_here

pytestmark = [pytest.mark.compiler, needs_vectors]


class Block(nn.Module):
    def __init__(self, inner, outer, window, stride, padding, dilation, bias):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, window, stride, padding, dilation, bias=bias)
        self.norm, self.last = nn.BatchNorm2d(outer), nn.Conv2d(outer, outer, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(outer)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        return torch.relu(y + self.last_norm(self.last(y)))


CASES = [
    # inner, outer, window, stride, padding, dilation, bias, image
    (3, 64, 7, 2, 3, 1, False, (2, 23, 31)),
    (64, 64, 3, 1, 1, 1, False, (1, 9, 14)),
    (32, 40, 3, 2, 1, 1, True, (3, 8, 7)),
    (64, 96, 1, 1, 0, 1, True, (2, 7, 7)),
    (64, 33, 1, 2, 0, 1, False, (1, 9, 9)),
    (5, 17, (3, 2), (1, 2), (2, 1), (2, 3), True, (2, 12, 11)),
    (520, 32, 3, 1, 1, 1, False, (1, 5, 5)),
]


def counted(name):
    return firebrick.stats()["counts"].get(name, 0)


@pytest.fixture
def tiles(monkeypatch):
    if not runs_here("avx512_bf16"):
        pytest.skip("no instructions for bfloat16 here")
    offered = []

    def measured(self, op, args, forms, config):
        offered.append((op, set(forms)))
        return {form: 1.0 if form == "tiles" else 2.0 for form in forms}

    monkeypatch.setattr(by_device, "REST", 0)
    monkeypatch.setattr(CpuTarget, "measured", measured)
    monkeypatch.setattr(tuning, "chosen", {})
    return offered


def block(*sizes):
    torch.manual_seed(0)
    *how, (batch, height, width) = sizes
    model = Block(*how).eval()
    for norm in (model.norm, model.last_norm):
        norm.running_mean.uniform_(-0.5, 0.5)
        norm.running_var.uniform_(0.5, 2)
        nn.init.uniform_(norm.weight, -1, 1)
        nn.init.uniform_(norm.bias, -1, 1)
    return model, torch.randn(batch, how[0], height, width)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_what_follows_is_in_the_kernel(case, last, tiles, tmp_path):
    model, x = block(*case)
    x = x.to(memory_format=torch.channels_last) if last else x
    half, narrow = model.bfloat16(), x.bfloat16()
    with torch.no_grad():
        wanted = half(narrow)
        options = {"cache_dir": tmp_path, "measure": True, "simd": "avx512_bf16", "check": "ir"}
        run, launches = firebrick.compile(half, fullgraph=True, options=options), counted("launches")
        out = run(narrow)
        exact = model.double()(narrow.double())
    assert [op for op, forms in tiles if "tiles" in forms] == ["aten::convolution"] * 2
    assert out.dtype is torch.bfloat16
    assert out.stride() == wanted.stride()
    assert (out - exact).abs().max() <= 1.1 * (wanted - exact).abs().max()
    assert counted("launches") - launches <= 2 + 2 * (not last), "and copies of what comes and goes"
