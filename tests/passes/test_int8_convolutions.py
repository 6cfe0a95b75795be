"""Convolutions of bytes by constant int8 weights: windows, steps, paddings, points, and what follows."""

import importlib

import pytest
import torch
from torch import nn
from vectors import needs_vectors

import firebrick

pytestmark = [pytest.mark.compiler, needs_vectors, pytest.mark.filterwarnings("ignore")]
importlib.import_module("torch.ao.quantization.fx._decomposed")
Q = torch.ops.quantized_decomposed


class Convolution(nn.Module):
    """As a graph of quantize and dequantize ops spells it. point: of images; by_channel: weights have scales."""

    def __init__(self, inner, outer, window, stride, padding, point, by_channel, w_point=0):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Buffer(torch.randint(-127, 128, (outer, inner, *window)).to(torch.int8))
        self.bias, self.scales = nn.Buffer(torch.randn(outer)), nn.Buffer(torch.rand(outer) * 0.01 + 0.001)
        self.points = nn.Buffer(torch.full((outer,), w_point))
        self.stride, self.padding, self.point, self.by_channel = stride, padding, point, by_channel

    def forward(self, x):
        how = (0.05, self.point, 0, 255, torch.uint8)
        x = Q.dequantize_per_tensor(Q.quantize_per_tensor(x, *how), *how)
        if self.by_channel:
            w = Q.dequantize_per_channel(self.weight, self.scales, self.points, 0, -127, 127, torch.int8)
        else:
            w = Q.dequantize_per_tensor(self.weight, 0.01, 0, -127, 127, torch.int8)
        return nn.functional.conv2d(x, w, self.bias, self.stride, self.padding)


def convolutions():
    return firebrick.stats()["counts"].get("int8 products", 0)


def check(model, x, count=1):
    with torch.no_grad():
        before = convolutions()
        out = firebrick.compile(model, fullgraph=True, options={"cache": False})(x)
        assert convolutions() == before + count
        wanted = model(x)
        assert out.stride() == wanted.stride()
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.parametrize(
    ("window", "stride", "padding"),
    [((1, 1), 1, 0), ((1, 1), 2, 0), ((3, 3), 1, 1), ((3, 3), 2, 1), ((7, 7), 2, 3), ((1, 5), (2, 1), (0, 2))],
)
@pytest.mark.parametrize("point", [0, 128])
@pytest.mark.parametrize("by_channel", [False, True])
def test_windows(window, stride, padding, point, by_channel):
    check(Convolution(5, 18, window, stride, padding, point, by_channel), torch.randn(2, 5, 13, 11))


def test_weights_with_points_and_images_channels_last():
    model = Convolution(16, 32, (3, 3), 1, 1, 100, True, 7)
    check(model, torch.randn(1, 16, 10, 10).to(memory_format=torch.channels_last))


def test_residual_blocks():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Convolution(8, 8, (3, 3), 1, 1, 120, True)
            self.second = Convolution(8, 8, (1, 1), 1, 0, 0, True)
            self.last = nn.Conv2d(8, 8, 3, padding=1)

        def forward(self, x):
            y = self.second(torch.relu(self.first(x))) + x
            return self.last(nn.functional.max_pool2d(y, 2)).flatten(1)

    check(Block().eval(), torch.randn(2, 8, 12, 12), 2)


@pytest.mark.parametrize("change", ["groups", "dilation", "point beyond bytes"])
def test_what_has_no_kernel(change):
    class Other(Convolution):
        def forward(self, x):
            y = Q.quantize_per_tensor(x, 0.05, 128, 0, 255, torch.uint8).float()
            y = (y - (300 if change == "point beyond bytes" else 128)) * 0.05
            groups, dilation = (2 if change == "groups" else 1), (2 if change == "dilation" else 1)
            return nn.functional.conv2d(y, self.weight.float() * 0.01, None, 1, 1, dilation, groups)

    inner = 4 if change == "groups" else 8
    check(Other(inner, 8, (3, 3), 1, 1, 0, False), torch.randn(1, 8, 12, 12), 0)
