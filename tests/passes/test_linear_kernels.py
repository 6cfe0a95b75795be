"""Kernels of matmuls by constant weights: every tail, activation and layout."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from vectors import needs_vectors

import firebrick
from firebrick.ir.operators.linear_op import ACTIVATIONS
from firebrick.targets.cpu import choices
from firebrick.targets.cpu.cpu_target import _SIMD
from firebrick.targets.cpu.processor import features

pytestmark = pytest.mark.compiler
LEVELS = [name for name, row in _SIMD.items() if row.needs <= features()]
SHAPES = [
    (1, 3, 5),
    (1, 768, 96),
    (7, 17, 33),
    (13, 1, 16),
    (14, 64, 32),
    (15, 64, 31),
    (29, 100, 48),
    (30, 513, 1),
    (49, 1100, 40),
    (300, 16, 20),
    (2, 2100, 12),
    (16, 1024, 21),
    (33, 130, 300),
    (37, 512, 72),
]
"""Rows, inner, outer: whole and broken tiles, groups and panels, one to nine pieces of a sum, rows and columns shared
out, rows that are copied, panels and dot products."""
APPLIED = {
    "none": lambda x: x,
    "relu": torch.relu,
    "hardtanh": lambda x: F.hardtanh(x, -0.25, 0.5),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "swish": F.silu,
    "hardswish": F.hardswish,
}


class Many(nn.Module):
    """One linear a shape. side: columns of the weights lie side by side in memory, not rows."""

    def __init__(self, shapes, act, side=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(k, n, bias=(k + n) % 2 == 0) for _, k, n in shapes)
        self.act = act
        if side:
            for layer in self.layers:
                layer.weight.data = layer.weight.data.t().contiguous().t()

    def forward(self, *inputs):
        return [self.act(layer(x)) for x, layer in zip(inputs, self.layers)]


def inputs(shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(m, k, generator=generator) for m, k, _ in shapes]


def compiled(model, level):
    return firebrick.compile(model.eval(), options={"simd": level, "cache": False})


def on_one_thread(run, given):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        return run(*given)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("level", [level for level in LEVELS if level != "scalar"])
def test_every_tail(level, side):
    model, given = Many(SHAPES, APPLIED["none"], side), inputs(SHAPES)
    with torch.no_grad():
        eager, run = model(*given), compiled(model, level)
        found, alone = run(*given), on_one_thread(run, given)
        exact = model.double()(*[x.double() for x in given])
    assert all(map(torch.equal, found, alone))
    for shape, a, b, c in zip(SHAPES, found, eager, exact, strict=True):
        assert a.stride() == b.stride()
        assert (a - c).abs().max() <= 1.1 * (b - c).abs().max() + 1e-6, shape


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("level", [level for level in LEVELS if level != "scalar"])
def test_panels_made_ahead_of_time(level, side, monkeypatch, caplog):
    monkeypatch.setattr(choices, "_SOME", 1)
    shapes = [(1, 64, 64), (5, 100, 96), (14, 65, 65), (15, 257, 325), (37, 512, 80), (300, 128, 64), (29, 1100, 100)]
    model, given = Many(shapes, F.gelu, side), inputs(shapes)
    with torch.no_grad():
        eager = model(*given)
        run = firebrick.compile(model.eval(), options={"simd": level, "cache": False, "debug": "aten"})
        found, alone = run(*given), on_one_thread(run, given)
        exact = model.double()(*[x.double() for x in given])
    assert caplog.text.count("'ahead'") >= len(shapes)
    assert all(map(torch.equal, found, alone))
    for shape, a, b, c in zip(shapes, found, eager, exact, strict=True):
        assert (a - c).abs().max() <= 1.1 * (b - c).abs().max() + 1e-6, shape


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("level", [level for level in LEVELS if level != "scalar"])
def test_every_tail_of_bfloat16(level, side, monkeypatch):
    monkeypatch.setattr(choices, "_PACKED", 1.5)
    model, given = Many(SHAPES, APPLIED["none"], side).bfloat16(), [x.bfloat16() for x in inputs(SHAPES)]
    with torch.no_grad():
        eager, run = model(*given), compiled(model, level)
        found = run(*given)
        exact = model.double()(*[x.double() for x in given])
    for shape, a, b, c in zip(SHAPES, found, eager, exact, strict=True):
        assert (a.dtype, a.stride()) == (torch.bfloat16, b.stride())
        # One rounding: half a unit in the last place of the largest number.
        assert (a - c).abs().max() <= c.abs().max() * 2**-8 + 1e-6, shape


@pytest.mark.parametrize("name", ["relu", "gelu", "tanh"])
def test_activations_of_bfloat16_are_part_of_the_matmul(name, monkeypatch, caplog):
    monkeypatch.setattr(choices, "_PACKED", 1.5)
    model, x = torch.nn.Linear(96, 80).bfloat16(), torch.randn(40, 96).bfloat16()
    act = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    options = {"simd": "avx2", "cache": False, "debug": "aten"}
    with torch.no_grad():
        found = firebrick.compile(lambda x: act(model(x)), options=options)(x)
        exact = act(model.double()(x.double()))
    assert f"'{name}'" in caplog.text
    assert found.dtype is torch.bfloat16
    assert (found - exact).abs().max() <= exact.abs().max() * 2**-8 + 1e-6


@pytest.mark.parametrize("side", [False, True])
@pytest.mark.parametrize("level", [level for level in LEVELS if level != "scalar"])
def test_any_number_of_rows(level, side):
    shapes = [*SHAPES, (37, 512, 72), (5, 1100, 300)]
    model, before = Many(shapes, torch.relu, side), firebrick.graphs_compiled()
    exactly = Many(shapes, torch.relu, side).double().eval()
    with torch.no_grad():
        run = firebrick.compile(model.eval(), options={"simd": level, "cache": False}, dynamic=True)
        for rows in (9, 1, 3, 14, 15, 31, 32, 63, 64, 130, 400, 1):
            given = inputs([(rows, k, n) for _, k, n in shapes])
            exact = exactly(*[x.double() for x in given])
            for shape, a, b, c in zip(shapes, run(*given), model(*given), exact, strict=True):
                assert (a - c).abs().max() <= 1.1 * (b - c).abs().max() + 1e-6, (rows, shape)
        none = run(*[x[:0] for x in given])
    assert all(x.shape == (0, n) for x, (_, _, n) in zip(none, shapes, strict=True))
    assert firebrick.graphs_compiled() - before <= 3  # one for all rows, one for one row, one for none


BATCHES = [(1000, 3, 3, 3), (7, 16, 33, 40), (1, 50, 20, 30), (3, 1, 64, 512), (2, 129, 17, 5), (5, 40, 520, 1)]
"""Products, rows, inner, outer."""


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("level", [level for level in LEVELS if level != "scalar"])
def test_batches_of_small_matrices(level, turned):
    def call(pairs):
        return [torch.relu(torch.bmm(x, y.mT if turned else y)) + 1 for x, y in pairs]

    generator = torch.Generator().manual_seed(3)
    pairs = [
        (
            torch.randn(b, m, 2 * k, generator=generator)[..., :k],
            torch.randn((b, n, k) if turned else (b, k, n), generator=generator),
        )
        for b, m, k, n in BATCHES
    ]
    run = firebrick.compile(call, options={"simd": level, "cache": False})
    found, eager = run(pairs), call(pairs)
    exact = call([(x.double(), y.double()) for x, y in pairs])
    for shape, a, b, c in zip(BATCHES, found, eager, exact, strict=True):
        assert a.stride() == b.stride()
        # Few sums, so that the largest error of either is a matter of luck: a rounding of the largest sum beyond.
        assert (a - c).abs().max() <= 1.1 * (b - c).abs().max() + 1.2e-7 * c.abs().max(), shape


def test_batches_whose_second_factor_has_gaps_along_both_axes():
    def call(x, y):
        return torch.bmm(x, y.permute(2, 0, 1)), torch.bmm(x, (y * 2).permute(2, 0, 1))

    x, y = torch.randn(4, 5, 6), torch.randn(6, 7, 4)
    compiled = firebrick.compile(call, options={"cache": False, "strict": True})
    for found, wanted in zip(compiled(x, y), call(x, y), strict=True):
        torch.testing.assert_close(found, wanted)


def test_the_table_of_activations_is_tested_whole():
    assert APPLIED.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("act", APPLIED)
def test_activations_hold_to_the_ends(act):
    shapes = [(7, 17, 33)]
    model, (x,) = Many(shapes, APPLIED[act]), inputs(shapes)
    special = [float("nan"), float("inf"), -float("inf"), -1e30, 1e30, 0.0]
    given = torch.cat([x, torch.tensor(special).view(-1, 1).expand(-1, 17) * torch.eye(6, 17).clamp(1e-9)])
    model.layers[0].weight.data[0] = 1.0
    run = compiled(Many([(13, 17, 33)], APPLIED[act]), "auto")
    run.load_state_dict(model.state_dict())
    with torch.no_grad():
        found, wanted = run(given)[0], model.double()(given.double())[0].float()
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_rows_that_are_apart_and_columns_that_are_apart():
    layer = nn.Linear(24, 40)
    base = torch.randn(48, 30)

    def call(x):
        return layer(x[:, 3:27]), layer(x.t()[:24].t()), layer(x[:24].t())

    run = firebrick.compile(call, options={"cache": False})
    with torch.no_grad():
        torch.testing.assert_close(run(base), call(base))


class Residual(nn.Module):
    """What is added to a product, and the loops that there are beside the product's kernel."""

    CASES = {
        "product first": (lambda y, z: y + z, 0),
        "product last": (lambda y, z: z + y, 0),
        "activation": (lambda y, z: F.relu(y + z), 0),
        "other shape": (lambda y, z: F.gelu((y.view(6, 35, 40).unsqueeze(0) + z.view(1, 6, 35, 40)).flatten(1, 2)), 0),
        "turned": (lambda y, z: y + z.reshape(5, 40, 42).transpose(1, 2), 1),
        "expanded": (lambda y, z: y + z[:, :, :1].expand(5, 42, 40), 1),
        "one row": (lambda y, z: y + z[:1, :1].expand(5, 42, 40), 1),
        "computed": (lambda y, z: y + z.sin(), 1),
        "broadcast": (lambda y, z: y + z[:1], 1),
        "scaled": (lambda y, z: torch.add(y, z, alpha=2), 1),
        "itself": (lambda y, z: y + y, 1),
        "read again": (lambda y, z: (y + z, y), 1),
        "view read again": (lambda y, z: (y.view(210, 40) + z.view(210, 40), y.view(-1)), 1),
        "order changed": (lambda y, z: y.transpose(1, 2) + z.transpose(1, 2), 1),
        "other dtype": (lambda y, z: y + z.double(), 1),
    }

    def __init__(self, case):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.case = nn.Linear(300, 40), self.CASES[case][0]

    def forward(self, x, z):
        return self.case(self.layer(x), z)


@needs_vectors
@pytest.mark.parametrize("case", Residual.CASES)
def test_what_is_added_is_read_by_the_kernel(case):
    model = Residual(case).eval()
    x, z = torch.randn(5, 42, 300), torch.randn(5, 42, 40)
    firebrick.reset()
    before = firebrick.stats()["counts"].get("kernels", 0)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, "auto")(x, z), model(x, z), rtol=1e-5, atol=1e-5)
    assert firebrick.stats()["counts"].get("kernels", 0) - before == 1 + Residual.CASES[case][1]


@pytest.mark.parametrize("level", [level for level in LEVELS if level != "scalar"])
def test_sums_of_two_products_and_of_layers(level):
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(n, n, bias=n % 2 == 0) for n in (33, 64, 300))

        def forward(self, *given):
            return [layer(x) + layer(layer(x).relu() + x) for x, layer in zip(given, self.layers)]

    model = Layers().eval()
    given = [torch.randn(m, n) for m, n in ((3, 33), (47, 64), (21, 300))]
    with torch.no_grad():
        torch.testing.assert_close(compiled(model, level)(*given), model(*given))


def test_a_convolution_of_single_pixels_is_a_matmul():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(16, 40, 1, bias=False),
        nn.BatchNorm2d(40),
        nn.ReLU6(),
        nn.Conv2d(40, 24, 1),
        nn.Conv2d(24, 8, 1, stride=2),
    ).eval()
    net[1].running_var.uniform_(0.5, 2)
    for x in (torch.randn(2, 16, 9, 7), torch.randn(2, 16, 9, 7).to(memory_format=torch.channels_last)):
        run = firebrick.compile(net, options={"cache": False})
        with torch.no_grad():
            found, wanted = run(x), net(x)
        assert found.stride() == wanted.stride()
        torch.testing.assert_close(found, wanted)
