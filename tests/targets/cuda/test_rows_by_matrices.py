"""Matmuls of one row are sums in loops, fused with what stands around them; the library does the others."""

import pytest
import torch
import torch.nn.functional as F
from interpreted import AVAILABLE

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="no triton")

if AVAILABLE:
    from groups import CARDS, CudaTarget, schedule
    from test_cubins import cubins
    from tile_agree import agree, calls, decompositions, launches, lower, planned, trace

    from firebrick.config import Config

TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-6}


def factors(columns, depth, dtype, rows=1):
    torch.manual_seed(columns)
    x, w = torch.randn(rows, depth), torch.randn(columns, depth) / depth**0.5
    return x.to(dtype), w.to(dtype), torch.randn(columns).to(dtype)


def feed_forward(x, gate, up, down):
    return x + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("columns", "depth"), [(24, 64), (129, 768), (40, 4096), (7, 11008), (600, 72)])
def test_a_row_agrees(dtype, columns, depth):
    x, w, bias = factors(columns, depth, dtype)
    for fn, inputs in (
        (F.linear, (x, w)),
        (F.linear, (x, w, bias)),
        (F.linear, (x[None], w)),
        (lambda x, w: torch.mm(x, w.t()), (x, w)),
        (lambda x, w, b: torch.addmm(b[:1], x, w.t()), (x, w, bias)),
    ):
        assert not calls(agree(fn, *inputs, tolerance=TOLERANCE[dtype]))


def test_few_sums_of_many_are_split():
    x, w, bias = factors(3, 1 << 18, torch.float32)
    schedule = agree(F.linear, x, w, bias, tolerance=1e-5)
    assert not calls(schedule) and launches(schedule) == 2


def test_what_stands_around_is_one_kernel_with_it():
    torch.manual_seed(0)
    x = torch.randn(1, 512).bfloat16()
    gate, up, down = ((torch.randn(*s) / s[1] ** 0.5).bfloat16() for s in ((1376, 512), (1376, 512), (512, 1376)))
    schedule = agree(feed_forward, x, gate, up, down, tolerance=2e-2)
    assert not calls(schedule) and launches(schedule) == 2


def test_a_weight_in_bytes_is_read_as_it_lies():
    torch.manual_seed(0)
    x, w, scale = torch.randn(1, 256), torch.randint(-127, 127, (96, 256), dtype=torch.int8), torch.rand(96, 1) / 99
    schedule = agree(lambda x, w, s: F.linear(x, w.float() * s), x, w, scale, tolerance=1e-5)
    assert not calls(schedule) and launches(schedule) == 1


@pytest.mark.parametrize(
    ("fn", "shape", "dtype"),
    [
        (F.linear, (2, 64, 64), torch.float16),
        (F.linear, (1, 64, 63), torch.float16),
        (F.linear, (1, 64, 64), torch.float64),
        (lambda x, w: torch.mm(x, w), (1, 64, 64), torch.float16),
        (lambda x, w: torch.addmm(x, x, w.t(), beta=2), (1, 64, 64), torch.float32),
    ],
    ids=["two rows", "odd rows of the matrix", "float64", "sums across rows", "factors"],
)
def test_the_library_does_others(fn, shape, dtype):
    rows, columns, depth = shape
    x, w, _ = factors(columns, depth, dtype, rows)
    assert len(calls(planned(fn, x, w)[1])) == 1


def test_weights_are_read_before_earlier_kernels_are_done():
    x, w, _ = factors(64, 256, torch.float16)
    target = CudaTarget(CARDS[90])

    def text(fn, *inputs):
        program = lower(trace(fn, inputs, decompositions()), {"cpu": target}, Config())
        (unit,) = target.units(schedule(program, {"cpu": target}, Config()), Config())
        lines = unit.text.splitlines()
        wait = next(k for k, line in enumerate(lines) if "gdc_wait" in line)
        return [k < wait for k, line in enumerate(lines) if "tl.load(" in line]

    assert text(lambda x: F.linear(x, w), x) == [True, False]
    assert text(F.linear, x, w) == [False, False]  # who gives a weight may have it written by the kernel before


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_rows_by_matrices_are_built(arch, tmp_path):
    for dtype in TOLERANCE:
        for columns, depth in ((4096, 4096), (96, 11008), (2048, 768)):
            assert cubins(F.linear, *factors(columns, depth, dtype), arch=arch, folder=tmp_path)
