"""Every kind of kernel through Triton's interpreter, against eager and float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from interpreted import AVAILABLE

if AVAILABLE:
    from groups import CARDS
    from tile_agree import agree, calls, launches, planned, run_interpreted

from firebrick.ir.index.expr import as_int

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not AVAILABLE, reason="no triton")]


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def places(high, *shape, low=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(3))


SIZES = (1, 7, 32, 1000, 5000, 100_000)


def matrix(n, dim):
    few = 1 if n == 100_000 else 3
    return rand(few, n) if dim else rand(n, few)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("n", SIZES)
def test_reductions_of_every_length(n, dim):
    x = matrix(n, dim)
    agree(lambda x: (x.sum(dim), x.amax(dim), x.argmax(dim), x.argmin(dim)), x, tolerance=1e-3, exact=False)
    agree(lambda x: (x.mean(), x.amin(), x.argmax(), (x > 0).any(dim), (x > -9).all()), x, tolerance=1e-4)
    agree(lambda x: (x.var(dim, unbiased=False), x.std()), x.clone() if n > 1 else matrix(2, dim), tolerance=1e-5)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("n", SIZES)
def test_softmax_is_one_kernel_or_split(n, dim):
    made = agree(lambda x: x.softmax(dim), matrix(n, dim), tolerance=1e-5)
    assert launches(made) == 1 or n == 100_000 or (n == 5000 and dim == 0)
    assert calls(made) == []
    agree(lambda x: (x.log_softmax(dim), x.logsumexp(dim)), matrix(n, dim), tolerance=1e-5)


@pytest.mark.parametrize("n", [30, 30_000])
def test_softmax_of_infinities_and_nan(n):
    rows = torch.zeros(6, n)
    rows[0, 3], rows[1, 3], rows[2, :], rows[3, n - 1] = math.inf, -math.inf, -math.inf, math.nan
    rows[4, 0], rows[4, n - 1] = math.inf, -math.inf
    agree(lambda x: (x.softmax(1), x.logsumexp(1)), rows)


NORMS = {
    "layer": (lambda x: F.layer_norm(x, (33,)), rand(7, 33)),
    "layer of long rows": (
        lambda x, w, b: F.layer_norm(x, (20_000,), w, b),
        rand(3, 20_000),
        rand(20_000),
        rand(20_000),
    ),
    "group": (lambda x, w, b: F.group_norm(x, 4, w, b), rand(2, 16, 5, 6), rand(16), rand(16)),
    "batch": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), rand(8, 16, 5, 6), rand(16), rand(16)),
    "rms": (lambda x, w: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w, rand(50, 96), rand(96)),
    "residual": (lambda x, y: F.layer_norm(x + y, (96,)) + x, rand(50, 96), rand(50, 96)),
    "a row's length": (lambda x: x / x.norm(dim=-1, keepdim=True), rand(7, 33)),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms(name):
    fn, *inputs = NORMS[name]
    made = agree(fn, *inputs, tolerance=2e-5)
    assert calls(made) == []
    assert launches(made) == {"group": 2, "layer of long rows": 3}.get(name, 1)


@pytest.mark.parametrize("classes", [10, 1000, 50_257])
def test_cross_entropy(classes):
    agree(lambda x, y: F.cross_entropy(x, y), rand(6, classes), places(classes, 6), tolerance=1e-5)


def test_places_of_ties_and_nan():
    x = torch.tensor([[1.0, 3, 3, 0], [math.nan, 2, math.nan, 5], [0, 0, -0.0, 0], [2, math.nan, 9, 9]])
    agree(lambda x: (x.argmax(1), x.argmin(1), x.argmax(0), x.argmin(), *x.max(1), *x.min(0)), x)


SCANS = {
    "cumsum": torch.cumsum,
    "cumprod": torch.cumprod,
    "logcumsumexp": torch.logcumsumexp,
    "cummax": lambda x, d: tuple(torch.cummax(x, d)),
    "cummin": lambda x, d: tuple(torch.cummin(x, d)),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, dim):
    for n in (1, 33, 700):
        x = 1 + rand(n, 5).t().contiguous() / 50 if dim else 1 + rand(n, 5) / 50
        made = agree(lambda x: SCANS[name](x, dim), x, tolerance=1e-4, exact=False)
        assert calls(made) == []
        assert launches(made) == 1 or n == 1


def test_a_scan_in_a_short_fold_across_rows():
    agree(lambda x: x.cumsum(0).amax(0), rand(4, 40))
    agree(lambda x: x.cummax(0)[0].sum(0), rand(16, 33))


def test_a_scan_of_what_all_rows_share():
    agree(lambda x, y: torch.maximum(x, y.expand(5, 16).cummax(0)[0]), rand(5, 16), rand(5, 1))


def test_long_scans_carry():
    agree(lambda x: x.cumsum(-1), rand(2, 20_000), tolerance=1e-3, exact=False)
    agree(lambda x: (x.cumsum(0), *x.cummax(0)), rand(2000, 40), tolerance=1e-3, exact=False)


INDIRECT = {
    "gather": (lambda x, i: x.gather(1, i) + 1, rand(5, 10), places(10, 5, 30)),
    "index": (lambda x, i: x[:, i], rand(5, 10), places(10, 30, low=-10)),
    "embedding": (lambda w, i: F.embedding(i, w) * 2, rand(100, 64), places(100, 7, 9)),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), rand(5, 10), places(10, 5, 30), rand(5, 30)),
    "accumulate": (lambda x, i, s: x.index_put((i,), s, True), rand(50, 10), places(50, 300), rand(300, 10)),
    "index_put": (lambda x, i, s: x.index_put((i,), s), rand(50, 10), torch.arange(0, 50, 7), rand(8, 10)),
    "amax": (lambda x, i, s: x.scatter_reduce(1, i, s, "amax"), rand(5, 10), places(10, 5, 30), rand(5, 30)),
    "amin": (lambda x, i, s: x.scatter_reduce(1, i, s, "amin"), rand(5, 10), places(10, 5, 30), rand(5, 30)),
    "16 bits": (lambda x, i, s: x.scatter_add(1, i, s), rand(5, 9).half(), places(9, 5, 20), rand(5, 20).half()),
    "whole": (lambda x, i, s: x.scatter_add(0, i, s), places(9, 50), places(50, 90), places(5, 90)),
}


@pytest.mark.parametrize("name", INDIRECT)
def test_places_from_data(name):
    fn, *inputs = INDIRECT[name]
    agree(fn, *inputs, tolerance=1e-5)


def test_an_index_outside_raises_as_eager():
    with pytest.raises(IndexError, match="index out of range in self"):
        agree(lambda w: F.embedding(torch.tensor([3, 100]), w), rand(100, 4).requires_grad_(False))


def test_updates_of_floats_keep_nan():
    i = torch.zeros(1, 4, dtype=torch.int64)
    for values in ([1.0, math.nan, 3.0, -2.0], [-1.0, -math.nan, -3.0, -2.0], [-0.0, 0.0, -1.0, -5.0]):
        for how in ("amax", "amin"):
            agree(lambda x, i, s: x.scatter_reduce(1, i, s, how), torch.full((1, 2), -1.5), i, torch.tensor([values]))


MOVES = {
    "broadcast": (lambda x, y: x + y[:, None] * 2, rand(7, 33), rand(7)),
    "transpose": (lambda x: x.t().contiguous() * 2, rand(70, 45)),
    "add transposed": (lambda x, y: x + y.t(), rand(70, 45), rand(45, 70)),
    "batches": (lambda x: x.permute(0, 2, 1).contiguous() + 1, rand(5, 40, 70)),
    "channels last": (lambda x: x.contiguous(memory_format=torch.channels_last) * 2, rand(2, 32, 9, 8)),
    "from channels last": (
        lambda x: x.contiguous() * 2,
        rand(2, 32, 9, 8).contiguous(memory_format=torch.channels_last),
    ),
    "cat": (lambda x: torch.cat([x, x * 2, x[:, :5]], 1), rand(7, 33)),
    "stack": (lambda x: torch.stack([x, x * 2, x + 1], 2), rand(7, 33)),
    "pad": (lambda x: F.pad(x, (1, 2, 3, 0), value=2.0) + 1, rand(7, 33)),
    "reflect": (lambda x: F.pad(x[None], (4, 3), mode="reflect") + 1, rand(7, 33)),
    "flip": (lambda x: x.flip(1) + x, rand(7, 33)),
    "strided": (lambda x: x[::2, 1::3] * 2, rand(7, 33)),
    "shuffle": (lambda x: F.pixel_shuffle(x, 2), rand(2, 16, 5, 6)),
    "number": (lambda x: x * 2 + 1, torch.tensor(3.0)),
    "nothing": (lambda x: (x.sum(1), x * 2), torch.ones(3, 0)),
    "max_pool": (lambda x: F.max_pool2d(x, 3, 2, 1), rand(2, 8, 20, 20)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), rand(2, 8, 20, 20)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, 1), rand(2, 64, 20, 20)),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), rand(2, 3, 8, 8)),
    "grid": (lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False), rand(2, 4, 8, 8), rand(2, 5, 5, 2)),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    fn, *inputs = MOVES[name]
    agree(fn, *inputs, tolerance=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_floats(dtype):
    x, y = rand(7, 33).to(dtype), rand(33).to(dtype)
    agree(lambda x, y: (F.layer_norm(x, (33,), y), x.softmax(1), F.gelu(x) / y, x.amax(0), x > y, x.sum()), x, y)
    agree(lambda x, y: (torch.where(x > y, x, 0), x.clamp(-1, 1), x.to(torch.int32), x.abs().sqrt().float()), x, y)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool])
def test_whole_numbers(dtype):
    x, y = places(100, 7, 33).to(dtype), places(2, 33).to(dtype)
    agree(lambda x, y: (x.sum(1), x.amax(0), x | y, x == y, x.float() / 3, x.any(1)), x, y)
    if dtype != torch.bool:
        agree(lambda x, y: (x + y, x * 3 - y, x // 7, x % 7, torch.div(x, 5, rounding_mode="trunc"), x.prod(0)), x, y)
        agree(lambda x, y: (x << y, x >> 1, ~x, x.abs(), x.sign(), x.argmax(1), x // y, x % (y + 3)), x - 50, y + 1)


SPLIT = {
    "sum": lambda x: x.sum(),
    "mean apart": lambda x: ((x - x.mean()) ** 2).mean().sqrt(),
    "softmax": lambda x: x.softmax(0),
    "places": lambda x: (x.argmax(), x.argmin(), x.max(0).indices),
    "what is stored on the way": lambda x: (x.exp(), x.exp().sum(), x * 2 / x.amax()),
}


@pytest.mark.parametrize("n", [600_000, 600_064, 614_400])
@pytest.mark.parametrize("name", SPLIT)
def test_few_long_rows_are_split_over_programs(name, n):
    made = agree(SPLIT[name], rand(n), tolerance=1e-4)
    assert launches(made) > 1
    assert calls(made) == []


def test_columns_are_split_over_programs():
    made = agree(lambda x: (x.sum(0), x.argmax(0)), rand(20_000, 40), tolerance=1e-3)
    assert launches(made) == 2


@pytest.mark.parametrize("rows", [2, 3])
def test_a_reduction_over_a_dimension_that_repeats_one_row(rows):
    repeated = rand(9).as_strided((rows, 9), (0, 1))
    agree(lambda x: x.logsumexp(0), repeated)
    agree(lambda x: x.logsumexp(1), repeated.t())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_reads_its_rows_once(dtype):
    x, y = (torch.randn(5, 20000) * 3).to(dtype), torch.tensor([3, 19999, -100, 0, 7])
    schedule = agree(F.cross_entropy, x, y, tolerance=1e-5 if dtype == torch.float32 else 1e-2)
    parts = [p for k in schedule.kernels for p in getattr(k.body, "parts", ())]
    walks = [phase for p in parts for phase in p.phases if phase.dim >= 0 and p.inner[phase.dim].kind == "loop"]
    assert len(walks) == 1


def test_exponentials_of_short_floats_are_as_near_to_float64_as_eager():
    for dtype, rows, scale in ((torch.bfloat16, 4096, 3), (torch.float16, 1000, 20), (torch.bfloat16, 40_000, 8)):
        x = (rand(3, rows) * scale).to(dtype)
        made, schedule = run_interpreted(lambda x: (x.softmax(1), x.float().logsumexp(1)), x)
        wide = x.double()
        for got, eager, want in zip(made, (x.softmax(1), x.float().logsumexp(1)), (wide.softmax(1), wide.logsumexp(1))):
            ours, theirs = ((t.double() - want).norm() / want.norm() for t in (got, eager))
            assert ours <= 1.01 * theirs + 1e-7


def test_exponentials_are_exact_where_a_result_has_32_bits():
    for x in (rand(4, 999), rand(4, 999).half()):
        _, _, texts = planned(lambda x: x.softmax(1, torch.float32), x)
        assert "tl.exp(" not in "".join(texts)
    _, _, texts = planned(lambda x: x.softmax(1), x)
    assert "tl.exp(" in texts[0]
    assert "libdevice.exp(" not in texts[0]


def squeeze(x, mean, var):
    y = F.hardswish(F.batch_norm(x, mean, var))
    return y, y.mean((2, 3), keepdim=True)


@pytest.mark.parametrize("channels, side", [(72, 56), (120, 28), (480, 14), (960, 7)])
def test_means_of_one_image_fill_the_card(channels, side):
    x = rand(1, channels, side, side).half().contiguous(memory_format=torch.channels_last)
    made = agree(squeeze, x, rand(channels).half(), rand(channels).half().abs() + 1, tolerance=2e-3)
    most = max(as_int(s.grid[0]) for s in made.steps)
    assert most >= CARDS[90].multiprocessors // 3
    assert launches(made) == (2 if side >= 28 else 1)


@pytest.mark.parametrize("n", [30, 200])
def test_a_mean_of_few_rows_is_no_loop_of_each_thread(n):
    made = agree(lambda x: x.mean(0), rand(n, 96), tolerance=1e-5)
    (kernel,) = made.kernels
    assert kernel.body.parts[0].inner


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_constant_of_minus_zero_keeps_its_sign(dtype):
    """To Triton a number that equals 0 is 0.0."""

    def signs(x):
        zero = torch.zeros_like(x).mul(-1)
        padded = torch.constant_pad_nd(x, [1, -1], -0.0)
        return torch.atan2(zero, x), *[torch.copysign(x, y) for y in (zero, torch.where(x > 0, zero, x), padded)]

    agree(signs, rand(8, 8).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_quotients_of_zero_have_the_sign_of_the_division(dtype):
    x = torch.tensor([0.0, -0.0, 1, -1, 0.5, -0.5, 3, -3, math.inf], dtype=dtype)
    agree(lambda x, y: torch.copysign(torch.ones_like(x), x // y), x.repeat_interleave(4), x[2:6].repeat(9))


def test_whole_numbers_beside_a_constant_stay_narrow():
    """A helper took the number for an int32, and what followed did not wrap around."""
    x = torch.arange(250, dtype=torch.uint8).view(5, 50)
    agree(lambda x: ((-x.relu()).sum(1, dtype=torch.float64), (x.clamp(3, 200) + 100).float()), x)
    agree(lambda x: (x.clamp_min(90) + 90).double(), x.view(torch.int8))
