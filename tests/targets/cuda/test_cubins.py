"""Kernels become machine code for cards of two kinds, without one of them here."""

import pytest
import torch
import torch.nn.functional as F
from interpreted import AVAILABLE

if AVAILABLE:
    from groups import CARDS, CudaTarget, schedule
    from tile_agree import agree, decompositions, lower, trace

from firebrick.config import Config
from firebrick.runtime.triton_build import build_cubins

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not AVAILABLE, reason="no triton")]


def cubins(fn, *inputs, arch=90, folder):
    """What a function's kernels are built to; a refused one raises."""
    target = CudaTarget(CARDS[arch])
    program = lower(trace(fn, inputs, decompositions()), {"cpu": target}, Config())
    return build_cubins(target.units(schedule(program, {"cpu": target}, Config()), Config()), folder, 1, 120)


def floats(x):
    """Functions of two numbers of which one is in the program."""
    y = (x.fmod(1.5), x.remainder(0.1), torch.div(x, -0.7, rounding_mode="floor"), x.clamp(-0.1, 0.3), x.pow(2.5))
    y += (torch.maximum(x, torch.full_like(x, 0.1)), torch.where(x > 0, x, 0.1), F.pad(x, (1, 2), value=0.1))
    y += (torch.atan2(x, x.new_tensor(0.3)), x.div(0.3, rounding_mode="trunc"), F.softplus(x, 3.1), F.elu(x, 0.3))
    return y


def integers(x):
    y = (x.fmod(3), x.remainder(3), torch.div(x, 3, rounding_mode="floor"), x.clamp(1, 3), F.pad(x, (1, 2), value=7))
    return (*y, x << 1, x >> 1, x & 5, torch.maximum(x, torch.full_like(x, 2)), torch.where(x > 0, x, 1))


def updates(x, at, values):
    return x.index_add(0, at, values), x.scatter_reduce(0, at, values, "amax"), x.index_put((at,), values, True)


def exponentials(x, image):
    wide = x.repeat(1, 50)  # rows that no program holds
    return x.softmax(1), wide.softmax(1), wide.logsumexp(1), F.hardswish(image).mean((2, 3))


@pytest.mark.parametrize("arch", [80, 90])
def test_softmax_and_means_of_every_dtype_are_built(arch, tmp_path):
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        image = torch.randn(1, 40, 30, 30).to(dtype, memory_format=torch.channels_last)
        assert cubins(exponentials, torch.randn(3, 900).to(dtype), image, arch=arch, folder=tmp_path)


@pytest.mark.parametrize("arch", [80, 90])
def test_kernels_of_every_dtype_are_built(arch, tmp_path):
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        assert cubins(floats, torch.randn(40).to(dtype), arch=arch, folder=tmp_path)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        assert cubins(integers, torch.arange(40).to(dtype), arch=arch, folder=tmp_path)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int16, torch.uint8])
def test_updates_of_every_dtype_are_built(dtype, tmp_path):
    at = torch.tensor([3, 3, 0, 7])
    assert cubins(updates, torch.ones(9, dtype=dtype), at, torch.full((4,), 3, dtype=dtype), folder=tmp_path)


def test_a_scan_of_what_all_rows_share_is_built(tmp_path):
    x, y = torch.randn(5, 16).half(), torch.randn(5, 1).half()
    assert cubins(lambda x, y: torch.maximum(x, y.expand(5, 16).cummax(0)[0]), x, y, folder=tmp_path)


def test_numbers_of_float64_are_not_rounded_to_float32():
    agree(floats, torch.randn(40, dtype=torch.float64), tolerance=1e-14)
