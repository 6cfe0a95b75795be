"""Scans: running sums, products and bests along any dimension, and what runs in one kernel with them."""

import math

import pytest
import torch
from agree import agree, calls, launches
from machine import Runner
from tests.ir.tree_text import parse_kernel, show_kernel

from firebrick.config import Config
from firebrick.errors import InternalError
from firebrick.fuse import schedule
from firebrick.ir.kernels.tree import Acc
from firebrick.ir.loops.check import check
from firebrick.ir.loops.parse import parse
from firebrick.ir.loops.show import show
from firebrick.targets.cpu.cpu_target import detect

pytestmark = pytest.mark.compiler

OPS = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "logcumsumexp": torch.logcumsumexp,
    "cummax": lambda x, d: tuple(torch.cummax(x, d)),
    "cummin": lambda x, d: tuple(torch.cummin(x, d)),
}


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", OPS)
def test_every_dimension(name, dim):
    fn = OPS[name]
    x = rand(7, 19, 37) if name != "cumprod" else 1 + rand(7, 19, 37) / 10
    made = agree(lambda x: fn(x, dim), x, exact=False)
    assert (launches(made), calls(made)) == (1, [])


def test_every_width(simd):
    fn = lambda x: (x.cumsum(0), x.cumsum(-1) * 2, *x.cummax(0), *x.t().cummin(0))  # noqa: E731
    agree(fn, rand(13, 70), simd=simd, tolerance=1e-6)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool]
)
def test_dtypes(dtype):
    agree(lambda x: (x.cumsum(1), x.cumprod(0)), (rand(5, 9) * 2).to(dtype), exact=False)
    if dtype.is_floating_point:
        agree(lambda x: (x.logcumsumexp(1), x.logcumsumexp(0)), (rand(5, 9) * 2).to(dtype), exact=False)
    if dtype != torch.bool:
        agree(lambda x: (*x.cummax(1), *x.cummin(0)), (rand(5, 9) * 2).to(dtype), exact=False)


SHAPES = {
    "number": torch.tensor(3.0),
    "one": rand(1),
    "empty": rand(3, 0),
    "a row": rand(1, 1000),
    "transposed": rand(8, 9).t(),
    "strided": rand(8, 18)[:, ::2],
    "expanded": rand(8, 1).expand(8, 5),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    x = SHAPES[name]
    agree(lambda x: (x.cumsum(-1), *x.cummax(-1), x.cumsum(0) + 1, x.logcumsumexp(0)), x, tolerance=1e-6)


def test_ties_and_nan():
    x = torch.tensor([1.0, 1.0, 0.0, math.nan, 2.0, math.nan, math.inf, -math.inf, -math.nan])
    agree(lambda x: (*x.cummax(0), *x.cummin(0), *x.flip(0).cummax(0), x.cumsum(0)), x, exact=False)
    agree(lambda x: (*x.cummax(0), *x.cummin(0)), torch.tensor([-math.inf, -math.inf, math.inf, math.inf]), exact=False)


def test_long_sums_are_eager_s_bit_for_bit():
    agree(lambda x: x.cumsum(-1), rand(3, 100_000))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_logarithms_of_sums_of_infinities_and_nan(dtype):
    inf, nan = math.inf, math.nan
    rows = [[-inf, -inf, 1.0, -inf, 2.0], [inf, 1.0, -inf, inf, inf], [-inf, inf, -inf, 0.0, -1.0]]
    rows += [[1.0, nan, 2.0, inf, -inf], [nan, -inf, inf, 1.0, 1.0], [inf, nan, -inf, 2.0, nan]]
    rows += [[-inf] * 5, [inf] * 5, [0.0, -0.0, -0.0, 0.0, 0.0], [-1e4, 1e4, -1e4, 3e4, -3e4]]
    x = torch.tensor(rows).to(dtype)
    agree(lambda x: (x.logcumsumexp(1), x.logcumsumexp(0)), x, exact=False)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_logarithms_of_sums_are_as_accurate_as_eager_s(dtype, dim, simd):
    x = (rand(300, 70) * 20).to(dtype)
    exact = x.double().logcumsumexp(dim)
    made = agree(lambda x: x.logcumsumexp(dim), x, exact=False, simd=simd)
    assert (launches(made), calls(made)) == (1, [])
    error = (Runner(made.program, Config(simd=simd))([x], {})[0].double() - exact).abs().max()
    assert error <= 1.1 * (x.logcumsumexp(dim).double() - exact).abs().max() + 1e-13


def test_logarithms_of_sums_in_a_kernel_with_others():
    made = agree(lambda x: (x * 2).logcumsumexp(1).sub(x).exp().sum(1), rand(6, 40), tolerance=1e-5)
    assert launches(made) == 1
    agree(lambda x: x.cfloat().logcumsumexp(0), rand(6), exact=False)


def test_what_makes_and_what_reads_a_scan_is_its_kernel():
    made = agree(lambda x, y: ((x * y).exp().cumsum(1) + y).relu(), rand(6, 40), rand(40), tolerance=1e-5)
    assert launches(made) == 1
    made = agree(lambda x: x.cumsum(0).cumprod(0) / x.cumsum(0), rand(6, 40), tolerance=1e-4)
    assert launches(made) == 1, "all run along one loop"
    made = agree(lambda x: x.softmax(1).cumsum(1).sub(0.5).abs().argmin(1), rand(6, 40), tolerance=1e-5)
    assert launches(made) == 1, "rows: a maximum, a sum, a scan and a position"


def test_scans_along_different_loops_are_apart():
    made = agree(lambda x: x.cumsum(0).cumsum(1), rand(6, 40), tolerance=1e-5)
    assert launches(made) == 2
    assert "they run along different loops" in {r.reason for r in made.refusals}
    made = agree(lambda x: x.cumsum(0).sum(1), rand(6, 40), tolerance=1e-5)
    assert launches(made) == 2, "a sum of each row would need a running sum for each column"


def test_a_sum_before_the_scan_of_sums():
    agree(lambda x: x.sum(-1).cumsum(-1) * 2, rand(5, 6, 7), tolerance=1e-5)
    agree(lambda x: (x - x.mean(1, keepdim=True)).cumsum(1).amax(1), rand(5, 60), tolerance=1e-5)


TEXT = """loops f
  input  x: f32[8, 16]
  output %0: f32[8, 16], %1: f32[8, 16]
  n0 for i0 in 8, i1 in 16
    v0 = x[16*i0 + i1]
    v1 = running_sum(v0, i1)
    %0[16*i0 + i1] = v1 * running_max(v1, i1)
    %1[16*i0 + i1] = running_min(v0, i1)
  out  %0, %1
"""


def test_text_of_programs_and_of_kernels():
    program = parse(TEXT)
    check(program)
    assert show(program) == TEXT
    (kernel,) = schedule(program, {"cpu": detect(Config())}, Config()).kernels
    assert parse_kernel(show_kernel(kernel)) == kernel
    loop = next(s for s in kernel.body if hasattr(s, "axis"))
    assert [s.reduction for s in loop.body if isinstance(s, Acc) and s.running] == ["sum", "max", "min"]


def test_a_scan_along_no_loop_of_the_nest_is_illegal():
    with pytest.raises(Exception, match="no loop i7"):
        parse(TEXT.replace("running_sum(v0, i1)", "running_sum(v0, i7)"))
    program = parse(TEXT.replace("running_sum(v0, i1)", "sum(running_sum(x[16*i0 + r0], r0) for r0 in 4)"))
    with pytest.raises(InternalError, match="no loop r0 of the nest"):
        check(program)
