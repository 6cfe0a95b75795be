"""max_pool with the places of its maxima, in loops: windows, layouts, equals, NaN and infinities."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from agree import agree, calls, launches

import firebrick

pytestmark = pytest.mark.compiler


def rand(*shape):
    # Few different numbers, so that many are equal.
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).mul(2).round()


IMAGE = rand(2, 3, 19, 41)
LAYOUTS = {
    "contiguous": IMAGE,
    "channels last": rand(2, 20, 19, 11).to(memory_format=torch.channels_last),
    "transposed": rand(2, 3, 41, 19).transpose(2, 3),
    "strided": rand(2, 3, 19, 40)[..., ::2],
    "one image": IMAGE[0],
    "column": rand(1, 2, 30, 1),
    "no image": IMAGE[:0],
    "no channels": IMAGE[:, :0],
}
WINDOWS = {
    "pairs": (2,),
    "rows": ((1, 3),),
    "padded": (3, 2, 1),
    "dilated": (3, 2, 1, 2),
    "uneven": ((2, 5), (3, 1), (1, 2), (1, 2)),
    "up": (3, 4, 1, 1, True),
    "overlapping": (5, 1, 2),
    "widest": (6, 2, 3),
}


REFUSED = {*product(["column"], ["pairs", "rows", "dilated", "uneven"]), *product(["no channels"], WINDOWS)}
"""Layouts with windows that eager finds too large for them."""


def pool(fn, *args):
    return lambda x: fn(x, *args, return_indices=True)


def pool2d(size, stride=None, pad=0, dilation=1, ceil_mode=False):
    return pool(F.max_pool2d, size, stride, pad, dilation, ceil_mode)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", WINDOWS)
def test_images(window, layout):
    x, fn = LAYOUTS[layout], pool2d(*WINDOWS[window])
    if (layout, window) in REFUSED:
        for call in (fn, firebrick.compile(fn)):
            with pytest.raises(RuntimeError):
                call(x)
        return
    large = layout == "channels last" and window in ("overlapping", "widest")
    made = calls(agree(fn, x))
    assert made == ["aten::max_pool2d_with_indices"] * large


def test_one_kernel_finds_both():
    assert launches(agree(pool2d(2), IMAGE)) == 1


def test_rows_and_volumes():
    for args in ((3,), (5, 2, 2), (33, 4, 16), (3, 1, 1, 2)):
        assert calls(agree(pool(F.max_pool1d, *args), rand(2, 3, 100))) == []
    volume = rand(1, 2, 7, 8, 21)
    for args in ((2,), (3, 2, 1), ((1, 2, 3), 1, (0, 1, 1))):
        assert calls(agree(pool(F.max_pool3d, *args), volume)) == []
    last = volume.to(memory_format=torch.channels_last_3d)
    assert calls(agree(pool(F.max_pool3d, 2), last)) == []


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    assert calls(agree(pool2d(3, 2, 1), IMAGE.to(dtype))) == []


def test_every_width(simd):
    agree(pool2d(3, 2, 1), IMAGE, simd=simd)


@pytest.mark.parametrize("window", WINDOWS)
def test_numbers_that_are_none_or_infinite(window):
    few = torch.tensor([-math.inf, -math.inf, -math.inf, math.nan, math.inf, 0.0, -0.0])
    drawn = torch.randint(0, len(few), (2, 3, 19, 41), generator=torch.Generator().manual_seed(4))
    agree(pool2d(*WINDOWS[window]), few[drawn], exact=False)
    agree(pool2d(*WINDOWS[window]), torch.full((1, 2, 19, 20), -math.inf), exact=False)


def test_places_are_read_again():
    fn = lambda x: F.max_unpool2d(*F.max_pool2d(x.sin(), 2, return_indices=True), 2) + 1  # noqa: E731
    agree(fn, rand(2, 3, 8, 10), tolerance=1e-6)


def test_even_adaptive_maxima():
    assert calls(agree(pool(F.adaptive_max_pool2d, (3, 4)), rand(2, 3, 12, 20))) == []


def test_places_in_large_windows_are_the_librarys():
    assert calls(agree(pool2d(7, 1), IMAGE)) == ["aten::max_pool2d_with_indices"]
