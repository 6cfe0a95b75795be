"""Matmuls whose result has rows that begin at odd places are kernels of our own; the library does the others."""

import pytest
import torch
import torch.nn.functional as F
from interpreted import AVAILABLE

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")

if AVAILABLE:
    from test_cubins import cubins
    from tile_agree import agree, planned

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


def factors(rows, columns, depth, dtype):
    torch.manual_seed(rows)
    x, w = torch.randn(rows, depth), torch.randn(columns, depth) / depth**0.5
    return x.to(dtype), w.to(dtype), torch.randn(columns).to(dtype)


def kinds(schedule):
    return [getattr(s, "kernel", "").partition("_")[2] or s.op for s in schedule.steps]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("rows", "depth"), [(40, 72), (130, 136), (1100, 64)])
def test_products_agree(dtype, rows, depth):
    x, w, bias = factors(rows, 1027, depth, dtype)
    for fn, inputs in ((F.linear, (x, w)), (F.linear, (x, w, bias)), (torch.mm, (x, w.t()))):
        assert kinds(agree(fn, *inputs, tolerance=TOLERANCE[dtype])) == ["matmul"]


def test_large_ones_are_done_by_a_program_for_each_multiprocessor():
    x, w, bias = factors(1100, 3851, 72, torch.float16)
    for fn, inputs in ((F.linear, (x, w, bias)), (torch.mm, (x, w.t()))):
        made = agree(fn, *inputs, tolerance=2e-3)
        (step,) = made.steps
        assert step.grid[0].const == 132
        assert step.args[-1].endswith("_maps")
        assert planned(fn, *inputs)[2][0].count("tl.make_tensor_descriptor") == 2


def test_factors_that_begin_inside_of_memory():
    x, w, bias = factors(48, 1043, 80, torch.float16)

    def fn(x, w, bias):
        return F.linear(x[:, 16:], w[3:-13, 16:], bias[5:-11])

    assert kinds(agree(fn, x, w, bias, tolerance=2e-3)) == ["matmul"]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((40, 1024, 64), torch.float16),
        ((40, 1027, 63), torch.float16),
        ((8, 1027, 64), torch.float16),
        ((40, 99, 64), torch.float16),
        ((40, 1027, 64), torch.float32),
    ],
    ids=["even rows", "odd factors", "few rows", "small", "float32"],
)
def test_the_library_does_what_it_does_well(shape, dtype):
    x, w, _ = factors(*shape, dtype)
    assert "matmul" not in kinds(planned(F.linear, x, w)[1])


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("rows", [40, 1024, 4096])
def test_products_are_built(arch, rows, tmp_path):
    for dtype in TOLERANCE:
        x, w, bias = factors(rows, 5025, 768, dtype)
        assert cubins(F.linear, x, w, bias, arch=arch, folder=tmp_path)
