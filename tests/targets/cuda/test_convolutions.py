"""Convolutions for a GPU: by the library with what follows, as matmuls of patches, by loops; through the interpreter."""

import copy

import pytest
import torch
from interpreted import AVAILABLE
from torch import nn

if AVAILABLE:
    from tile_agree import calls as calls_of
    from tile_agree import for_a_card, launches

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cudnn"), pytest.mark.skipif(not AVAILABLE, reason="no triton")]


def check(net, x, tolerance=2e-2):
    """The calls and the launches of a module compiled for a card, whose results are eager's."""
    net = net.eval()
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for t in (norm.running_mean, norm.weight, norm.bias):
                nn.init.normal_(t)
    made, results = for_a_card(net, x)
    with torch.no_grad():
        want, wide = net(x), copy.deepcopy(net).double()(x.double())
    for a, b, c in zip(results, *[t if isinstance(t, tuple) else (t,) for t in (want, wide)], strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        assert (a.double() - c).norm() <= 2 * (b.double() - c).norm() + 1e-6
    return [op.removeprefix("aten::") for op in calls_of(made)], launches(made)


class Bottleneck(nn.Module):
    def __init__(self, bias=False):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(8, 4, 1, bias=bias), nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 8, 1, bias=bias)
        self.na, self.nb, self.nc = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.BatchNorm2d(8)

    def forward(self, x):
        y = torch.relu(self.na(self.a(x)))
        y = torch.relu(self.nb(self.b(y)))
        return torch.relu(self.nc(self.c(y)) + x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_norms_residuals_and_relus_are_the_librarys(dtype, bias):
    calls, _ = check(Bottleneck(bias).to(dtype), torch.randn(2, 8, 6, 5).to(dtype), 5e-2)
    assert calls == ["cudnn_convolution_relu", "cudnn_convolution_relu", "cudnn_convolution_add_relu"]


def test_other_functions_add_the_bias():
    net = nn.Sequential(nn.Conv2d(4, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 1)).half()
    calls, kernels = check(net, torch.randn(2, 4, 7, 6).half())
    assert calls == ["convolution", "convolution"]
    assert kernels == 2


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("channels", "window"), [(3, 4), (24, 2)])
def test_windows_side_by_side_are_a_matmul(last, channels, window):
    x = torch.randn(2, channels, 8, 12).half()
    x = x.to(memory_format=torch.channels_last) if last else x
    calls, kernels = check(nn.Sequential(nn.Conv2d(channels, 16, window, window), nn.SiLU()).half(), x)
    assert calls == ["addmm.out"]
    assert kernels == 2
    calls, _ = check(nn.Conv2d(channels, 16, window, window, bias=False).half(), x)
    assert calls == ["mm.out"]


def test_windows_that_do_not_cover_the_image_are_the_librarys():
    calls, _ = check(nn.Conv2d(3, 16, 4, 4).half(), torch.randn(2, 3, 9, 12).half())
    assert calls == ["convolution"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("window", "stride", "padding", "dilation"), [(3, 1, 1, 1), (5, 2, 2, 1), (7, 1, 3, 1), (3, 1, 0, 2)]
)
def test_a_window_for_each_channel_is_a_loop(dtype, window, stride, padding, dilation):
    conv = nn.Conv2d(12, 12, window, stride, padding, dilation, groups=12)
    net = nn.Sequential(conv, nn.BatchNorm2d(12), nn.Hardswish()).to(dtype)
    calls, kernels = check(net, torch.randn(2, 12, 9, 11).to(dtype), 5e-2)
    assert calls == []
    assert kernels <= 2  # the second lies as the caller's images do


def test_large_images_of_separate_channels_are_the_librarys():
    calls, _ = check(nn.Conv2d(64, 64, 7, padding=3, groups=64).half(), torch.randn(1, 64, 104, 104).half())
    assert calls == ["convolution"]
