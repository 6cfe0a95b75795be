"""Folding and prepacking: right results, and right again after the weights have changed in whatever way."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from vectors import needs_vectors

from firebrick import fuse, host, runtime
from firebrick.config import Config
from firebrick.lower import lower
from firebrick.passes import run_passes
from firebrick.passes.prepack import prepack_linear
from firebrick.report import recorder
from firebrick.targets.by_device import find_targets
from firebrick.targets.cpu import choices
from firebrick.targets.cpu.cpu_target import CpuTarget, detect
from firebrick.trace import trace_inference

pytestmark = pytest.mark.compiler
CONFIG = Config()
PACKED = Config(simd="avx512" if detect(CONFIG).simd.startswith("avx512") else "auto")
"""Where bfloat16 has no instructions and no tiles of ours."""


class Inlined(fx.Tracer):
    def is_leaf_module(self, module, name):
        return False


def aten_graph(model, *inputs, config=CONFIG):
    graph = Inlined().trace(model)
    (output,) = (n for n in graph.nodes if n.op == "output")
    if not isinstance(output.args[0], tuple):
        output.args = ((output.args[0],),)
    with torch.no_grad():
        return run_passes(
            trace_inference(fx.GraphModule(model, graph), list(inputs), config), find_targets((), config), config
        )


def compiled(graph, config=CONFIG):
    targets = find_targets((), config)
    schedule = fuse.schedule(lower(graph, targets, config), targets, config)
    artifact = runtime.build(host.generate(schedule, targets, config), config)
    return runtime.load(artifact, graph.constants)


def targets(graph):
    return [str(n.target).removeprefix("mkldnn.") for n in graph.gm.graph.nodes if n.op == "call_function"]


def packed_calls(graph):
    names = ("_pointwise", "firebrick.linear", "firebrick.convolution")
    return [n for n in graph.gm.graph.nodes if any(name in str(n.target) for name in names)]


def check(model, x, atol=2e-5):
    graph = aten_graph(model, x)
    run = compiled(graph)
    compare(model, run, x, atol)
    return graph, run


def compare(model, run, x, atol=2e-5):
    with torch.no_grad():
        expected = model(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for ours, theirs in zip(run(x), expected, strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs, atol=atol, rtol=2e-5)


class Mlp(nn.Module):
    def __init__(self, act=F.gelu):
        super().__init__()
        self.up, self.down, self.act = nn.Linear(64, 256), nn.Linear(256, 64), act

    def forward(self, x):
        return self.down(self.act(self.up(x)))


X = torch.randn(4, 16, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# ---------------------------------------------------------------- linear


@needs_vectors
@pytest.mark.parametrize(
    ("act", "attr"),
    [
        (F.gelu, "gelu"),
        (lambda t: F.gelu(t, approximate="tanh"), "gelu_tanh"),
        (torch.tanh, "tanh"),
        (torch.sigmoid, "sigmoid"),
        (F.silu, "swish"),
        (F.hardswish, "hardswish"),
        (lambda t: F.leaky_relu(t, 0.2), "none"),
        (F.relu, "relu"),
        (F.relu6, "hardtanh"),
        (F.mish, "none"),
    ],
)
def test_activation_is_fused_and_agrees_with_eager(act, attr):
    model = Mlp(act).eval()
    graph, run = check(model, X)
    assert [n.args[5] for n in packed_calls(graph)] == [attr, "none"]
    bad = X.clone()
    bad[0, 0, 0], bad[1, 1, 1] = float("nan"), float("inf")
    with torch.no_grad():
        expected = model(bad)
    ours = run(bad)[0]
    assert torch.equal(ours.isnan(), expected.isnan())


@needs_vectors
def test_weights_are_read_where_they_are(monkeypatch):
    monkeypatch.setattr(choices, "_AHEAD", 1.0)

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, x):
            return F.linear(F.linear(x, self.weight), self.weight)

    graph, run = check(Tied(), torch.randn(256, 64), atol=1e-3)
    assert len(packed_calls(graph)) == 2 and graph.recipe is None


MEMORY = {
    "gaps": lambda w: (w[::2, 1:129:2].t(), w[:64, 1:196:3]),
    "offset": lambda w: (w[1:, 3:67].t()[:, 5:], w[2:66, 7:131]),
    "computed": lambda w: ((w[:, :64] * 2).t(), w[:64, :130] + 1),
    "view of what is computed": lambda w: (w.exp()[1:, 3:67].t()[:, 5:], w.exp()[2:66, ::2][:, :124]),
    "expanded": lambda w: (w[:64, :1].expand(64, 20), w[:1, :70].expand(64, 70)),
}


@needs_vectors
@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("memory", MEMORY)
def test_weights_in_any_memory_are_multiplied(memory, rows):
    class Given(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(130, 600))

        def forward(self, x):
            first, second = MEMORY[memory](self.weight)
            return x @ first, x @ second

    model, x = Given(), torch.randn(rows, 64)
    graph, run = check(model, x, atol=1e-3)
    assert len(packed_calls(graph)) == 2
    model.weight.data.mul_(0.5)
    compare(model, run, x, atol=1e-3)


def test_weight_that_is_not_transposed_is_packed():
    class Conv1D(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(64, 192)), nn.Parameter(torch.randn(192))

        def forward(self, x):
            return torch.addmm(self.bias, x.view(-1, 64), self.weight).view(4, 16, 192)

    graph, _ = check(Conv1D(), X, atol=1e-4)
    assert len(packed_calls(graph)) == 1


@pytest.mark.parametrize("reason", ["double", "mutable", "option", "numerics"])
def test_what_does_not_fit_stays(reason):
    model, x, config = Mlp().eval(), X, CONFIG
    if reason == "double":
        model, x = model.double(), X.double()
    if reason == "option":
        config = CONFIG.with_options({"prepack": False})
    if reason == "numerics":
        config = CONFIG.with_options({"numerics": "eager"})
    if reason == "mutable":
        graph = aten_graph(model, x, config=CONFIG.with_options({"prepack": False}))
        graph.frozen = frozenset()
        graph = prepack_linear(graph, find_targets((), CONFIG), CONFIG)
    else:
        graph = aten_graph(model, x, config=config)
    assert not packed_calls(graph) and graph.recipe is None
    compare(model, compiled(graph, config), x)


@pytest.mark.parametrize("change", ["no_grad", "data", "row", "column", "last_row", "replaced", "load", "one_of_two"])
def test_changed_weights_are_seen_at_the_next_call(change):
    model = Mlp().eval()
    _, run = check(model, X)
    weight = model.up.weight
    with torch.no_grad():
        if change == "no_grad":
            weight.mul_(1.5)
        elif change == "data":
            weight.data.mul_(0.5)
        elif change == "row":
            weight.data[7] = 1.0
        elif change == "column":
            weight.data[:, 11] = 1.0
        elif change == "last_row":
            weight.data[-1] += 1.0
        elif change == "replaced":
            weight.data = torch.randn_like(weight)
        elif change == "load":
            model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})
        else:
            model.down.weight.data.add_(0.25)
    for _ in range(2):
        compare(model, run, X, atol=2e-4)


@pytest.mark.parametrize("shape", [(3072, 768), (768, 3072), (2049, 65)])
def test_every_single_row_and_column_counts(shape):
    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(shape))

        def forward(self, x):
            return F.linear(x, self.weight)

    model, x = One(), torch.ones(8, shape[1])
    run = compiled(aten_graph(model, x))
    rows = {0, 1, 2, shape[0] // 2, shape[0] - 2, shape[0] - 1}
    columns = {0, 1, shape[1] // 2, shape[1] - 1}
    for at in [(r, slice(None)) for r in rows] + [(slice(None), c) for c in columns]:
        run(x)
        model.weight.data[at] += 1.0
        compare(model, run, x, atol=1e-2)


def test_recipe_runs_only_when_a_source_changed():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.bias = nn.Parameter(torch.rand(64)), nn.Parameter(torch.rand(64))

        def forward(self, x):
            return x * torch.rsqrt(self.scale + 1e-5) + self.bias

    model = Scaled().eval()
    _, run = check(model, X)
    count = recorder.counts
    before = count["recipes run"]
    for _ in range(3):
        run(X)
    assert count["recipes run"] == before
    model.bias.data.add_(1.0)  # no source of what is computed ahead
    compare(model, run, X)
    assert count["recipes run"] == before
    model.scale.data.add_(1.0)
    compare(model, run, X, atol=1e-3)
    assert count["recipes run"] == before + 1


def test_first_call_under_inference_mode_leaves_usable_weights():
    model = Mlp().eval()
    run = compiled(aten_graph(model, X))
    with torch.inference_mode():
        run(X)
    compare(model, run, X)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no bfloat16 in oneDNN here")
def test_bfloat16_weights_are_packed():
    model, x = Mlp().eval().bfloat16(), X.bfloat16()
    graph = aten_graph(model, x, config=PACKED)
    assert len(packed_calls(graph)) == 2
    ours = packed_calls(aten_graph(model, x[:1, :1], config=PACKED))
    assert [n.target for n in ours] == [torch.ops.firebrick.linear.default] * 2, "few rows have a kernel of ours"
    exact = Mlp().double()
    exact.load_state_dict({k: v.double() for k, v in model.state_dict().items()})
    with torch.no_grad():
        wanted, eager, ours = exact(x.double()), model(x), compiled(graph, PACKED)(x)[0]
    assert (ours - wanted).abs().max() <= 1.1 * (eager - wanted).abs().max() + 1e-2


@pytest.mark.skipif(detect(CONFIG).widens(torch.bfloat16), reason="oneDNN's is no form")
def test_bfloat16_products_take_an_addition_in(monkeypatch):
    every = CpuTarget.choices
    library = lambda self, op, args: tuple(c for c in every(self, op, args) if c.name in ("packed", "call"))  # noqa: E731
    monkeypatch.setattr(CpuTarget, "choices", library)

    class Sums(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second, self.third = (nn.Linear(96, 96).bfloat16() for _ in range(3))

        def forward(self, x, z):
            return self.first(x) + z, torch.tanh(self.second(x) + z), torch.tanh(self.third(x)) + z

    model, (x, z) = Sums(), torch.randn(2, 3, 64, 96).bfloat16()
    graph = aten_graph(model, x, z, config=CONFIG)
    assert [str(n.target).rpartition(".")[2] for n in packed_calls(graph)] == ["binary", "default", "default"]
    with torch.no_grad():
        found, eager, exact = compiled(graph)(x, z), model(x, z), model.double()(x.double(), z.double())
    for ours, theirs, wanted in zip(found, eager, exact, strict=True):
        assert (ours - wanted).abs().mean() <= 1.1 * (theirs - wanted).abs().mean()


# ---------------------------------------------------------------- convolution


class BatchNorm(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.1, self.eps)


def norm(channels):
    made = BatchNorm(channels)
    made.running_mean.normal_()
    made.running_var.uniform_(0.5, 2.0)
    nn.init.normal_(made.weight)
    nn.init.normal_(made.bias)
    return made


class Block(nn.Module):
    def __init__(self, act=F.relu, groups=1, bias=False):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=bias)
        self.first = norm(16)
        self.conv = nn.Conv2d(16, 16, 3, padding=1, groups=groups, bias=bias)
        self.second = norm(16)
        self.act = act
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.act(self.first(self.stem(x)))
        x = self.act(self.second(self.conv(x)) + x)
        return self.head(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1)), x


IMAGE = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@needs_vectors
@pytest.mark.parametrize("act", [F.relu, F.silu, F.hardswish, F.relu6])
@pytest.mark.parametrize("groups", [1, 16])
@pytest.mark.parametrize("bias", [False, True])
def test_convolution_takes_batch_norm_in_and_keeps_the_outputs_strides(act, groups, bias):
    graph, _ = check(Block(act, groups, bias).eval(), IMAGE, atol=1e-4)
    assert len(packed_calls(graph)) == 3
    assert not any("mul" in t or "add" in t or "batch_norm" in t for t in targets(graph))


@pytest.mark.parametrize("change", ["weight_row", "running_var", "bias"])
def test_changed_convolution_is_seen(change):
    model = Block().eval()
    _, run = check(model, IMAGE, atol=1e-4)
    with torch.no_grad():
        if change == "weight_row":
            model.conv.weight.data[3] = 0.5
        elif change == "running_var":
            model.first.running_var.data.mul_(2.0)
        else:
            model.second.bias.add_(1.0)
    compare(model, run, IMAGE, atol=1e-4)


def test_view_that_channels_last_does_not_allow_gets_a_copy():
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 32, 8, stride=8)

        def forward(self, x):
            y = self.conv(x)
            return y.view(2, 32 * 64).tanh(), y.flatten(2).transpose(1, 2).exp()

    graph = aten_graph(Patches().eval(), IMAGE)
    assert len(packed_calls(graph)) == 1
    check(Patches().eval(), IMAGE, atol=1e-4)


def test_channels_last_input_keeps_its_layout():
    check(Block().eval(), IMAGE.to(memory_format=torch.channels_last), atol=1e-4)


def test_nan_passes_through_relu():
    model = Block().eval()
    _, run = check(model, IMAGE, atol=1e-4)
    bad = IMAGE.clone()
    bad[0, 0, 5, 5] = float("nan")
    with torch.no_grad():
        assert torch.equal(run(bad)[1].isnan(), model(bad)[1].isnan())


# ---------------------------------------------------------------- folding


class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(64))

    def forward(self, x):
        return x * torch.rsqrt(self.scale + 1e-5)


def test_computation_on_constants_runs_once():
    graph, run = check(Folded(), X)
    assert targets(graph) == ["aten.mul.Tensor"]
    assert [str(n.target) for n in graph.recipe.nodes if n.op == "call_function"] == [
        "aten.add.Tensor",
        "aten.rsqrt.default",
    ]


def test_folded_constant_follows_its_source():
    model = Folded()
    _, run = check(model, X)
    model.scale.data[5] = 9.0
    compare(model, run, X)


def test_returned_constant_is_not_shared_with_the_caller():
    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(64))

        def forward(self, x):
            doubled = self.scale * 2
            return x * doubled, doubled

    model = Returns()
    _, run = check(model, X)
    run(X)[1].zero_()
    compare(model, run, X)


def test_random_and_big_results_are_not_folded():
    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.rand(300))

        def forward(self, x):
            wide = self.scale[:, None] * self.scale[None, :]
            return x * torch.rand_like(self.scale).sum() + wide.sum()

    graph = aten_graph(Random(), torch.randn(1))
    names = targets(graph)
    assert any("rand" in t for t in names)


def test_fold_can_be_switched_off():
    graph = aten_graph(Folded(), X, config=CONFIG.with_options({"fold": False}))
    assert graph.recipe is None
