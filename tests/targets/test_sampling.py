"""grid_sample in loops: modes, borders, layouts and coordinates that are no numbers."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from agree import agree, calls

import firebrick

pytestmark = pytest.mark.compiler

PADDINGS = ("zeros", "border", "reflection")
MODES = [m for m in itertools.product((2, 3), ("bilinear", "nearest", "bicubic"), PADDINGS) if m[:2] != (3, "bicubic")]
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2, torch.float16: 2e-3}


SHAPES = {"usual": ((7, 5, 6), (4, 9, 3)), "one element": ((1, 1, 1), (2, 3, 2)), "long": ((3, 2, 40), (1, 33, 2))}
CASES = [
    ("usual", torch.float32, 5),
    ("one element", torch.float64, 5),
    ("long", torch.bfloat16, 3),
]


def sample(rank, shape="usual", dtype=torch.float32, channels=5):
    """Images and a grid that reaches beyond them."""
    torch.manual_seed(0)
    size, out = SHAPES[shape]
    x = torch.randn(2, channels, *size[:rank])
    return x.to(dtype), (torch.rand(2, *out[:rank], rank) * 4 - 2).to(dtype)


def sampler(mode, padding, align=False):
    return lambda x, g: F.grid_sample(x, g, mode, padding, align) + 1


def each(mode, padding):
    """All pairs of images and grids, with and without aligned corners: one graph, compiled once."""
    aligned, not_aligned = sampler(mode, padding, True), sampler(mode, padding, False)
    return lambda *pairs: [fn(x, g) for fn in (aligned, not_aligned) for x, g in zip(pairs[::2], pairs[1::2])]


@pytest.mark.parametrize(("rank", "mode", "padding"), MODES)
def test_every_mode_is_as_exact_as_eager(rank, mode, padding):
    given = [t for case in CASES for t in sample(rank, *case)]
    fn = each(mode, padding)
    results = zip(firebrick.compile(fn)(*given), fn(*given), fn(*[t.double() for t in given]), CASES * 2, strict=True)
    for found, eager, exact, case in results:
        error = (eager.double() - exact).abs().max()
        assert found.dtype == eager.dtype
        assert (found.double() - exact).abs().max() <= 1.1 * error + TOLERANCE[case[1]], case


@pytest.mark.parametrize(
    ("rank", "mode", "padding", "dtype"),
    [
        (2, "bilinear", "zeros", torch.float64),
        (3, "nearest", "border", torch.float32),
        (3, "bilinear", "zeros", torch.float32),
    ],
)
def test_loops_alone_compute_it(rank, mode, padding, dtype):
    given = sample(rank, dtype=dtype)
    assert calls(agree(sampler(mode, padding), *given, tolerance=1e-5, exact=False)) == []


@pytest.mark.parametrize(("rank", "mode", "padding"), MODES)
def test_what_is_no_number_is_what_eager_says(rank, mode, padding):
    nan, inf = float("nan"), float("inf")
    x = torch.arange(1.0, 1 + 5**rank).view(1, 1, *[5] * rank)
    grid = torch.zeros(1, *[1] * (rank - 1), 7, rank)
    grid[..., 0] = torch.tensor([nan, inf, -inf, 1e7, -1e7, nan, 0.0])
    grid[..., 5, :] = nan
    grid[..., 6, 1] = nan
    image = torch.randn(1, 5, *[4] * rank, generator=torch.Generator().manual_seed(0))
    image.view(-1)[::3], image.view(-1)[1::5] = inf, nan
    given = (x, grid, image, torch.rand(1, *[6] * rank, rank, generator=torch.Generator().manual_seed(0)) * 3 - 1.5)
    fn = each(mode, padding)
    for found, eager in zip(firebrick.compile(fn)(*given), fn(*given), strict=True):
        torch.testing.assert_close(found, eager, equal_nan=True)


@pytest.mark.parametrize("layout", ["channels last", "sliced", "computed"])
def test_layouts(layout):
    x, g = sample(2, dtype=torch.float64)
    if layout == "channels last":
        x = x.to(memory_format=torch.channels_last)
    elif layout == "sliced":
        x, g = x[:, 1:, ::2, 1:], g.flip(1).transpose(1, 2)
    fn = (lambda x, g: F.grid_sample(x.sin(), g.tanh() * 2, align_corners=False)) if layout == "computed" else None
    made = agree(fn or sampler("bilinear", "zeros"), x, g, tolerance=1e-5)
    assert calls(made) == []


def test_half_precision_is_more_exact_than_eager():
    x, g = sample(2, dtype=torch.float16)
    found, exact = (
        firebrick.compile(sampler("bilinear", "border"))(x, g),
        sampler("bilinear", "border")(x.double(), g.double()),
    )
    assert (found.double() - exact).abs().max() <= TOLERANCE[torch.float16]


@pytest.mark.parametrize("shape", [(0, 3, 4, 4), (2, 0, 4, 4)])
def test_nothing(shape):
    x, g = torch.randn(shape), torch.zeros(shape[0], 3, 3, 2)
    fn = sampler("bilinear", "zeros")
    assert torch.equal(firebrick.compile(fn)(x, g), fn(x, g))


def test_the_library_samples_images_in_f32():
    assert calls(agree(sampler("bilinear", "zeros"), *sample(2), tolerance=1e-5)) == ["aten::grid_sampler_2d"]
