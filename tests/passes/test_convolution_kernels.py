"""Kernels of convolutions with packed weights: every border, tail, stride and layout, and what is fused into them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick.ir.operators.convolution_op import convolution_op, pack_convolution_op
from firebrick.targets.cpu.cpu_target import _SIMD
from firebrick.targets.cpu.processor import features

pytestmark = pytest.mark.compiler
LEVELS = [name for name, row in _SIMD.items() if row.needs <= features() and name != "scalar"]
DENSE = [
    # batch, (inner, outer), image, window, stride, padding, dilation
    (1, (3, 32), (32, 32), (3, 3), (2, 2), (1, 1), (1, 1)),
    (2, (3, 64), (57, 61), (7, 7), (2, 2), (3, 3), (1, 1)),
    (3, (40, 50), (13, 17), (3, 3), (1, 1), (1, 1), (2, 2)),
    (1, (64, 33), (20, 20), (5, 5), (2, 2), (2, 2), (1, 1)),
    (1, (600, 40), (9, 9), (1, 1), (2, 2), (0, 0), (1, 1)),
    (2, (600, 40), (7, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, (16, 20), (60, 1), (5, 1), (2, 1), (2, 0), (1, 1)),
    (2, (1, 64), (300, 1), (64, 1), (4, 1), (31, 0), (1, 1)),
    (1, (2, 8), (5, 1000), (1, 9), (1, 1), (0, 4), (1, 1)),
    (1, (32, 32), (32, 32), (4, 4), (4, 4), (0, 0), (1, 1)),
    (1, (300, 70), (3, 4), (3, 4), (1, 1), (0, 0), (1, 1)),
    (1, (512, 64), (5, 3), (3, 3), (1, 1), (1, 0), (1, 1)),
    (2, (24, 33), (9, 43), (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, (300, 20), (6, 90), (3, 5), (1, 2), (4, 2), (2, 1)),
    (2, (16, 40), (5, 50), (5, 3), (2, 1), (2, 30), (1, 3)),
    (1, (9, 16), (2, 45), (7, 7), (1, 1), (3, 3), (1, 1)),
    # Single pixels of several rows in a line.
    (2, (64, 200), (14, 14), (1, 1), (1, 1), (0, 0), (1, 1)),
    (1, (600, 70), (7, 7), (1, 1), (1, 1), (0, 0), (1, 1)),
    (3, (24, 144), (28, 6), (1, 1), (1, 1), (0, 0), (1, 1)),
    # Large weights.
    (1, (70, 130), (9, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, (129, 65), (11, 12), (3, 3), (2, 1), (1, 1), (2, 2)),
    (1, (300, 300), (13, 13), (1, 1), (2, 2), (0, 0), (1, 1)),
    (2, (250, 100), (40, 5), (1, 3), (1, 1), (0, 1), (1, 1)),
    (1, (3, 110), (30, 30), (16, 16), (1, 1), (0, 0), (1, 1)),
    (2, (40, 33), (100, 1), (64, 1), (1, 1), (32, 0), (1, 1)),
    (1, (28, 300), (10, 10), (3, 3), (1, 1), (1, 1), (1, 1)),
]
"""Whole and broken tiles and panels, runs of one row or of many, sums of one or more chains, one pixel of result."""
DEPTHWISE = [
    (1, (64, 64), (14, 14), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, (100, 100), (15, 13), (3, 3), (2, 2), (1, 1), (1, 1)),
    (1, (23, 23), (9, 30), (5, 5), (1, 1), (2, 2), (1, 1)),
    (3, (37, 37), (7, 7), (7, 7), (1, 1), (3, 3), (1, 1)),
    (1, (32, 32), (11, 40), (3, 3), (1, 1), (2, 2), (2, 2)),
    (1, (5, 5), (64, 64), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, (96, 96), (12, 31), (3, 5), (1, 2), (0, 2), (2, 1)),
    (2, (640, 640), (9, 6), (5, 3), (1, 1), (8, 4), (4, 2)),
    (1, (2400, 2400), (3, 3), (3, 9), (1, 1), (0, 3), (1, 1)),
]
"""Borders wider than the image, windows that lie outside of it, tails of channels, one pixel of result."""


class Convolutions(nn.Module):
    """One convolution a row of a table."""

    def __init__(self, rows, depthwise):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Conv2d(*channels, window, stride, padding, dilation, channels[0] if depthwise else 1, bias=k % 2 == 0)
            for k, (_, channels, _, window, stride, padding, dilation) in enumerate(rows)
        )

    def forward(self, *inputs):
        return [layer(x) for layer, x in zip(self.layers, inputs)]


def compiled(fn, level="auto", **options):
    return firebrick.compile(fn, options={"simd": level, "cache": False, **options})


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("rows", [DENSE, DEPTHWISE], ids=["dense", "depthwise"])
def test_every_border_and_tail(rows, last, level):
    model = Convolutions(rows, rows is DEPTHWISE).eval()
    layout = torch.channels_last if last else torch.contiguous_format
    given = [torch.randn(n, c, *size).contiguous(memory_format=layout) for n, (c, _), size, *_ in rows]
    with torch.no_grad():
        eager, found = model(*given), compiled(model, level)(*given)
        exact = model.double()(*[x.double() for x in given])
    for row, a, b, c in zip(rows, found, eager, exact, strict=True):
        assert a.stride() == b.stride()
        assert (a - c).abs().max() <= 1.1 * (b - c).abs().max() + 1e-6 * c.abs().max(), row


@pytest.mark.parametrize("depthwise", [False, True])
def test_scale_shift_residual_and_activation_are_one_kernel(depthwise):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(48, 48, 3, padding=1, groups=48 if depthwise else 1, bias=False)
            self.norm = nn.BatchNorm2d(48)

        def forward(self, x, shortcut):
            return F.relu(self.norm(self.conv(x)) + shortcut), F.hardswish(shortcut + self.norm(self.conv(x * 2)))

    torch.manual_seed(0)
    block = Block().eval()
    block.norm.running_var.uniform_(0.5, 2)
    block.norm.running_mean.normal_()
    x, shortcut = torch.randn(2, 48, 11, 10).to(memory_format=torch.channels_last), torch.randn(2, 48, 11, 10)
    with torch.no_grad():
        for other in (
            shortcut,
            shortcut.to(memory_format=torch.channels_last),
            shortcut[:, :, 1:2].expand_as(shortcut),
        ):
            torch.testing.assert_close(compiled(block)(x, other), block(x, other))


def test_scale_of_a_weight_that_is_read_where_it_is():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(96, 100, 3, padding=1)
            self.norm = nn.BatchNorm2d(100)

        def forward(self, x, shortcut):
            return F.relu(self.norm(self.conv(x)) + shortcut), self.norm(self.conv(x * 2))

    torch.manual_seed(0)
    block = Block().eval()
    block.norm.running_var.uniform_(0.5, 2)
    block.norm.running_mean.normal_()
    block.norm.weight.data.normal_()
    x, shortcut = torch.randn(2, 96, 11, 10), torch.randn(2, 100, 11, 10)
    run = compiled(block)
    with torch.no_grad():
        torch.testing.assert_close(run(x, shortcut), block(x, shortcut))
        block.conv.weight.mul_(-2)
        block.norm.weight.mul_(3)
        torch.testing.assert_close(run(x, shortcut), block(x, shortcut), rtol=1e-5, atol=1e-4)


def test_padding_that_the_program_does_itself():
    conv = nn.Conv2d(32, 32, 3, stride=2, groups=32)
    dense, single = nn.Conv2d(32, 40, 3, padding=1), nn.Conv2d(32, 40, 1)

    def call(x):
        around = F.pad(x, (1, 0, 2, 1))
        return conv(around), dense(around), single(F.pad(x, (0, 0, 0, 0))), dense(F.pad(x, (1, 1), value=2.0)), around

    x = torch.randn(1, 32, 20, 21)
    with torch.no_grad():
        torch.testing.assert_close(compiled(call)(x), call(x))


@pytest.mark.parametrize("depthwise", [False, True])
def test_what_is_no_number_stays_where_it_is(depthwise):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, groups=32 if depthwise else 1), nn.ReLU()).eval()
    x = torch.randn(1, 32, 16, 16)
    x[0, 3, 0, 0], x[0, 5, 8, 8], x[0, 31, 15, 15] = float("nan"), float("inf"), -float("inf")
    with torch.no_grad():
        torch.testing.assert_close(compiled(net)(x), net(x), equal_nan=True)


def test_pixels_and_channels_that_are_apart():
    torch.manual_seed(0)
    dense, depth = nn.Conv2d(24, 40, 3), nn.Conv2d(24, 24, 3, padding=1, groups=24)
    base = torch.randn(2, 30, 22, 30)

    def call(x):
        parts = x[:, 3:27], x[:, :24, ::2], x.transpose(2, 3)[:, 2:26], x.permute(0, 3, 1, 2)[:, 1:25], x[1:, 6:]
        return [layer(part) for part in parts for layer in (dense, depth)]

    with torch.no_grad():
        for given in (base, base.to(memory_format=torch.channels_last)):
            torch.testing.assert_close(compiled(call)(given), call(given))


def test_a_weight_that_changes_is_packed_again():
    net = nn.Sequential(nn.Conv2d(16, 32, 3), nn.Conv2d(32, 32, 3, groups=32)).eval()
    x, run = torch.randn(1, 16, 20, 20), compiled(net)
    with torch.no_grad():
        torch.testing.assert_close(run(x), net(x))
        for layer in net:
            layer.weight.mul_(-2)
        torch.testing.assert_close(run(x), net(x))


def test_the_operator_computes_what_its_kernel_does():
    weight, x = torch.randn(10, 6, 3, 5), torch.randn(2, 6, 9, 9)
    made = convolution_op(x, pack_convolution_op(weight, 4), None, None, 10, [1, 2], [2, 2, 0, 0], [1, 1], "none", [])
    torch.testing.assert_close(made, F.conv2d(x, weight, stride=(1, 2), padding=(0, 2)))
    scale = torch.randn(10)
    packed = pack_convolution_op(weight, 8, scale)
    made = convolution_op(x, packed, None, None, 10, [1, 2], [2, 2, 0, 0], [1, 1], "none", [])
    torch.testing.assert_close(made, F.conv2d(x, weight * scale.view(-1, 1, 1, 1), stride=(1, 2), padding=(0, 2)))
    weight, shift = torch.randn(6, 1, 3, 3), torch.randn(6)
    made = convolution_op(x, pack_convolution_op(weight, 0), shift, x, 6, [1, 1], [1, 1, 1, 1], [1, 1], "relu", [])
    torch.testing.assert_close(made, F.relu(F.conv2d(x, weight, shift, padding=1, groups=6) + x))
