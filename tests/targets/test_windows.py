"""Padding, interpolation, turned and joined tensors: what is computed in place by one kernel, without a call."""

import pytest
import torch
import torch.nn.functional as F
from agree import agree, calls, launches

import firebrick

pytestmark = pytest.mark.compiler


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def maxima(x, size, stride=None, pad=0, dilation=1):
    """What max_pool1d is made of."""
    return F.max_pool2d(x[:, None], (1, size), (1, stride or size), (0, pad), (1, dilation))


IMAGE = rand(2, 3, 9, 11)
WINDOWS = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "nearest smaller": lambda x: F.interpolate(x, size=(4, 5)),
    "nearest exact": lambda x: F.interpolate(x, size=(13, 30), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, size=(13, 30), mode="bilinear"),
    "bilinear corners": lambda x: F.interpolate(x, size=(5, 30), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, size=(13, 30), mode="bicubic"),
    "trilinear": lambda x: F.interpolate(x[None], size=(5, 4, 30), mode="trilinear"),
    "trilinear corners": lambda x: F.interpolate(x[None], size=(5, 13, 7), mode="trilinear", align_corners=True),
    "linear": lambda x: F.interpolate(x[0], size=30, mode="linear"),
    "reflect": lambda x: F.pad(x, (1, 2, 3, 4), mode="reflect"),
    "replicate": lambda x: F.pad(x, (1, 2, 3, 4), mode="replicate"),
    "constant": lambda x: F.pad(x, (1, -2, 0, 4), value=2.0),
    "roll": lambda x: x.roll((3, -4), (2, 3)),
    "roll flat": lambda x: x.roll(5),
    "flip": lambda x: x.flip(0, 3),
    "unfold": lambda x: x.unfold(3, 5, 2),
    "im2col": lambda x: F.unfold(x, 3, padding=1, stride=2),
    "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "large maxima": lambda x: F.max_pool2d(x, 5, 1, 2),
    "large dilated maxima": lambda x: F.max_pool2d(x, (5, 4), (2, 1), (2, 1), dilation=(1, 2)),
    "large maxima up": lambda x: F.max_pool2d(x, (3, 6), 4, 1, ceil_mode=True),
    "large means": lambda x: F.avg_pool2d(x, 5, 1, 2, count_include_pad=False),
    "large means up": lambda x: F.avg_pool2d(x, (3, 6), 4, 1, ceil_mode=True),
    "long maxima": lambda x: F.max_pool2d(x.flatten(2)[:, None], (1, 50), (1, 3), (0, 25)),
    "long means": lambda x: F.avg_pool1d(x.flatten(2)[0], 50, 3, 25),
    "wide maxima of a row": lambda x: maxima(x.flatten(2)[0], 33, 1, 16),
    "wide dilated maxima of a row": lambda x: maxima(x.flatten(2)[0], 17, 1, 3, dilation=2),
    "very wide maxima of a row": lambda x: maxima(x.flatten(2)[0], 98, 1),
    "wide maxima each 4": lambda x: maxima(x.flatten(2)[0], 40, 4, 7),
    "maxima of pairs": lambda x: maxima(x.flatten(2)[0], 2),
    "maxima each 7": lambda x: maxima(x.flatten(2)[0], 9, 7),
    "cubes": lambda x: F.max_pool3d(x[None], 3, 2, 1),
    "adaptive maxima": lambda x: F.adaptive_max_pool2d(x, (4, 5)),
    "even adaptive maxima": lambda x: F.adaptive_max_pool2d(x, (3, 11)),
    "adaptive maxima of a row": lambda x: F.adaptive_max_pool2d(x.flatten(2)[0][None], (3, 2)),
    "adaptive maxima of cubes": lambda x: F.adaptive_max_pool3d(x[None], (2, 9, 4)),
    "adaptive means": lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    "adaptive means of a row": lambda x: F.adaptive_avg_pool1d(x.flatten(2)[0], 2),
    "adaptive means, more than elements": lambda x: F.adaptive_avg_pool2d(x, (20, 12)),
}


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_windows_are_loops(name, layout):
    x = IMAGE.to(memory_format=layout)
    made = agree(lambda x: WINDOWS[name](x * 2) + 1, x, tolerance=2e-5)
    assert calls(made) == []


def test_maxima_of_large_windows_keep_nan_and_infinities():
    x = IMAGE.clone()
    x[0, 0, 3, 4], x[0, 1, 3, 4], x[1] = float("nan"), float("inf"), float("-inf")
    agree(lambda x: F.max_pool2d(x, 5, 1, 2), x, exact=False)
    agree(lambda x: F.adaptive_max_pool2d(x, (4, 5)), x, exact=False)


def test_wide_windows_of_a_row_keep_nan_and_infinities():
    x = rand(3, 200)
    x[0, 60], x[1, 60], x[2] = float("nan"), float("inf"), float("-inf")
    agree(lambda x: maxima(x, 33, 1, 16), x, exact=False)
    agree(lambda x: maxima(x, 9, 4), x, exact=False)


PICKED = {
    "each second": lambda x: x[:, ::2],
    "each second, from the first on": lambda x: x[:, 1::2],
    "each third": lambda x: x[:, 1::3],
    "each fourth": lambda x: x[:, 3::4],
    "backwards": lambda x: x.flip(1),
    "pairs exchanged": lambda x: torch.stack([x[:, 1::2], x[:, ::2]], -1),
    "sums of pairs": lambda x: x.unflatten(1, (-1, 2)).sum(-1),
    "best of three": lambda x: x[:, :-2].unflatten(1, (-1, 3)).amax(-1),
}


@pytest.mark.parametrize("simd", ["auto", "avx2", "scalar"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("name", PICKED)
def test_elements_a_few_places_apart(name, dtype, simd):
    x = (rand(5, 98) * 3).abs().to(dtype)
    assert calls(agree(lambda x: PICKED[name](x).clone() + 1, x, tolerance=1e-6, simd=simd)) == []


def test_nothing_behind_the_last_of_elements_apart_is_read():
    # The memory of 33 elements ends with the last that is read.
    page = torch.full((4096 * 3,), float("nan"))
    x = torch.as_strided(page, (17,), (2,), 4096 * 3 - 33).copy_(torch.arange(17.0))
    agree(lambda x: x * 2, x)


@pytest.mark.parametrize("name", ["large maxima", "large means", "long means", "adaptive maxima", "adaptive means"])
def test_windows_of_no_images_call_nothing(name):
    fn = (lambda x: F.avg_pool2d(x, (1, 50), 1)) if name == "long means" else WINDOWS[name]
    assert calls(agree(fn, torch.empty(0, 3, 9, 60))) == []


def test_places_of_adaptive_maxima_are_the_librarys():
    made = agree(lambda x: F.adaptive_max_pool2d(x, (4, 5), return_indices=True), IMAGE)
    assert calls(made) == ["aten::adaptive_max_pool2d"]


PADS = [(1, 2, 3, 4), (11, 11, 9, 9), (0, 0, 0, 0), (2, -3, 1, -1), (-1, 2, -2, 3)]


@pytest.mark.parametrize("pad", PADS, ids=str)
def test_circular_padding(pad):
    fn = lambda x: F.pad(x, pad, mode="circular") * 2  # noqa: E731
    torch.testing.assert_close(firebrick.compile(fn)(IMAGE), fn(IMAGE))


def test_circular_padding_beyond_the_size_raises_as_eager_does():
    with pytest.raises(RuntimeError, match="wrapping around more than once"):
        firebrick.compile(lambda x: F.pad(x, (12, 0, 0, 0), mode="circular"))(IMAGE)


JOINS = {
    "pointwise": (lambda x, y: torch.cat([x.exp(), y * 2], 1), 2),
    "a reduction": (lambda x, y: torch.cat([x.softmax(1), y.sum(1, keepdim=True)], 1), 2),
    "a scan": (lambda x, y: torch.cat([x.cumsum(1), y.cumsum(0)], 0), 2),
    "a gather": (lambda x, y: torch.cat([x[:, torch.arange(7).flip(0)] + 1, y], 0), 2),
    "stack": (lambda x, y: torch.stack([x.relu(), y.softmax(0), x + y], 1), 3),
    "layer norm": (lambda x, y: torch.cat([F.layer_norm(x, (7,)), F.layer_norm(y, (7,))], 0), 2),
}


@pytest.mark.parametrize("name", JOINS)
def test_parts_are_stored_in_the_result_by_what_makes_them(name):
    fn, kernels = JOINS[name]
    made = agree(fn, rand(8, 7), rand(8, 7), tolerance=1e-5)
    assert (launches(made), calls(made)) == (kernels, [])
    (out,) = [b.name for b in made.program.buffers if b.kind == "output"]
    for step in made.steps:
        assert out in step.args, "each kernel writes the result itself"
    assert made.arena_bytes == 0, "no part is stored anywhere else"
