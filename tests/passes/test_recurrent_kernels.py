"""Kernels of recurrent layers: every cell, tail, direction and layout, and what is left to PyTorch."""

import pytest
import torch
from torch import nn

import firebrick
from firebrick.ir.operators.recurrent_op import CELLS
from firebrick.targets.cpu.cpu_target import _SIMD
from firebrick.targets.cpu.processor import features
from firebrick.targets.cpu.recurrent_kernel import _STEP

pytestmark = pytest.mark.compiler
LEVELS = [name for name, row in _SIMD.items() if row.needs <= features() and name != "scalar"]
MODULES = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **more: nn.RNN(*sizes, nonlinearity="relu", **more),
}
SHAPES = [
    # width, size, batch, steps, settings
    (5, 1, 1, 1, {}),
    (16, 64, 1, 9, {}),
    (3, 20, 2, 4, {"bidirectional": True}),
    (24, 33, 7, 3, {"num_layers": 2, "batch_first": True}),
    (8, 32, 13, 1, {"bias": False}),
    (40, 130, 4, 5, {"num_layers": 2, "bidirectional": True, "bias": False, "batch_first": True}),
    (12, 7, 1, 2, {"num_layers": 3, "dropout": 0.5}),
    (256, 256, 1, 6, {"bidirectional": True}),
]
"""Whole and broken vectors and tiles, one step, one sequence, threads that share a layer out."""


def tensors(value):
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in tensors(v)]


def case(cell, shape, first):
    """A layer in inference, and its arguments: the sequences, and the first states where they are given."""
    width, size, batch, steps, more = shape
    torch.manual_seed(0)
    layer = MODULES[cell](width, size, **more).eval()
    x = torch.randn((batch, steps, width) if layer.batch_first else (steps, batch, width))
    states = torch.randn(2, layer.num_layers * (1 + layer.bidirectional), batch, size)
    if not first:
        return layer, (x,)
    return layer, (x, tuple(states) if cell == "lstm" else states[0])


def doubled(value):
    return value.double() if isinstance(value, torch.Tensor) else tuple(map(doubled, value))


def compiled(model, level="auto"):
    return firebrick.compile(model, options={"simd": level, "cache": False})


def layers_run():
    return firebrick.stats()["counts"].get("recurrent layers", 0)


def test_tables_have_the_same_cells():
    assert CELLS.keys() == _STEP.keys() == MODULES.keys()


@pytest.mark.parametrize("first", [False, True], ids=["from zeros", "from states"])
@pytest.mark.parametrize("cell", MODULES)
@pytest.mark.parametrize("level", LEVELS)
def test_every_tail(level, cell, first):
    threads, before = torch.get_num_threads(), layers_run()
    cases = [case(cell, shape, first) for shape in SHAPES]
    model = nn.ModuleList(layer for layer, _ in cases)
    run = compiled(lambda *given: [layer(*args) for layer, args in zip(model, given)], level)
    given = [args for _, args in cases]
    with torch.no_grad():
        eager, found = [layer(*args) for layer, args in cases], run(*given)
        try:
            torch.set_num_threads(1)
            alone = run(*given)
        finally:
            torch.set_num_threads(threads)
        exact = [layer.double()(*doubled(args)) for layer, args in cases]
    assert layers_run() - before == sum(layer.num_layers for layer, _ in cases)
    assert all(map(torch.equal, tensors(found), tensors(alone)))
    for shape, *results in zip(SHAPES, found, eager, exact, strict=True):
        for a, b, c in zip(*map(tensors, results), strict=True):
            assert (a.shape, a.stride()) == (b.shape, b.stride()), shape
            assert (a - c).abs().max() <= 1.1 * (b - c).abs().max() + 1e-6, shape


@pytest.mark.parametrize("cell", MODULES)
def test_the_operator_says_what_the_kernel_does(cell):
    """Its results in PyTorch, their metadata, and those of PyTorch's own layer."""
    layer, (x, first) = case(cell, (5, 6, 3, 4, {"bidirectional": True}), True)
    names = ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
    w, b, weights, biases = ([getattr(layer, f"{n}_l0{end}") for end in ("", "_reverse")] for n in names)
    projected = [nn.functional.linear(x, w[d], b[d]) for d in (0, 1)]
    hidden, state = first if cell == "lstm" else (first, None)
    given = (cell, projected, weights, biases, hidden, state)
    with torch.no_grad():
        out, last = torch.ops.firebrick.recurrent(*given)
        wanted, states = layer(x, first)
        torch.testing.assert_close((out, last), (wanted, states[1] if cell == "lstm" else states))
        into = torch.empty_like(out), torch.empty_like(last)
        torch.ops.firebrick.recurrent.out(*given, out=into[0], last=into[1])
        torch.testing.assert_close(into, (out, last))
    meta = torch.ops.firebrick.recurrent(
        *torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), given)
    )
    for a, b in zip(meta, (out, last), strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@pytest.mark.parametrize("cell", MODULES)
def test_numbers_without_end(cell):
    layer, (x, first) = case(cell, (4, 5, 6, 3, {}), True)
    special = [float("nan"), float("inf"), -float("inf"), -1e30, 1e30, 0.0]
    x[1] += torch.tensor(special).view(-1, 1) * torch.eye(6, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(layer)(x, first), layer(x, first), equal_nan=True)


def test_what_follows_reads_parts_of_the_results():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.head = nn.LSTM(8, 16, bidirectional=True, batch_first=True), nn.Linear(32, 3)

        def forward(self, x):
            out, (h, c) = self.layer(x.flip(1)[:, ::2] + 1)
            return self.head(out), h.sum(0), self.layer(x, (h, c))[1][1]

    model, x = Tagger().eval(), torch.randn(3, 10, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x))


def test_a_sequence_without_a_batch():
    for cell in MODULES:
        layer, (x,) = case(cell, (5, 6, 1, 4, {}), False)
        with torch.no_grad():
            torch.testing.assert_close(compiled(layer)(x[:, 0]), layer(x[:, 0]))


def test_a_state_that_one_call_gives_to_the_next():
    layer, (x, _) = case("gru", (5, 6, 2, 4, {}), True)
    run = compiled(layer)
    with torch.no_grad():
        ours, theirs = run(x), layer(x)
        for _ in range(3):
            ours, theirs = run(x, ours[1]), layer(x, theirs[1])
        torch.testing.assert_close(ours, theirs)


def test_weights_that_change():
    layer, args = case("gru", (5, 6, 2, 4, {}), True)
    run = compiled(layer)
    with torch.no_grad():
        run(*args)
        for p in layer.parameters():
            p.mul_(0.5)
        torch.testing.assert_close(run(*args), layer(*args))


def test_weights_that_are_arguments():
    layer, args = case("lstm", (5, 6, 2, 4, {}), True)
    weights = {name: p.detach() * 2 for name, p in layer.named_parameters()}

    def call(weights, *args):
        return torch.func.functional_call(layer, weights, args)

    with torch.no_grad():
        torch.testing.assert_close(compiled(call)(weights, *args), call(weights, *args))


def packed(layer, x):
    return layer(nn.utils.rnn.pack_padded_sequence(x, [4, 2], enforce_sorted=False))[0].data


LEFT = {
    "projected states": (nn.LSTM(5, 6, proj_size=3), lambda m, x: m(x)),
    "packed sequences": (nn.GRU(5, 6), packed),
    "float64": (nn.RNN(5, 6).double(), lambda m, x: m(x.double())),
    "bfloat16": (nn.GRU(5, 6).bfloat16(), lambda m, x: m(x.bfloat16())),
    "no sequences": (nn.GRU(5, 6), lambda m, x: m(x[:, :0])),
    "many sequences": (nn.LSTM(5, 65), lambda m, x: m(x[:, :1].expand(-1, 33, -1))),
}
"""What stays with PyTorch's kernels: a layer, and how it is called."""


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_pytorch(name):
    layer, call = LEFT[name]
    x, before = torch.randn(4, 2, 5), layers_run()
    with torch.no_grad():
        rough = {"rtol": 0.02, "atol": 0.01} if name == "bfloat16" else {}
        torch.testing.assert_close(compiled(lambda x: call(layer, x))(x), call(layer, x), **rough)
    assert layers_run() == before


@pytest.mark.parametrize("options", [{"numerics": "eager"}, {"simd": "scalar"}])
def test_settings_without_the_kernel(options):
    layer, args = case("gru", (5, 6, 2, 3, {}), True)
    before = layers_run()
    with torch.no_grad():
        found = firebrick.compile(layer, options={**options, "cache": False})(*args)
        torch.testing.assert_close(found, layer(*args))
    assert layers_run() == before


def test_autocast_is_left_to_pytorch():
    layer, (x, first) = case("gru", (5, 6, 2, 3, {}), True)

    def call(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x, first)

    before = layers_run()
    with torch.no_grad():
        torch.testing.assert_close(compiled(call)(x), call(x), rtol=0.02, atol=0.01)
    assert layers_run() == before


def test_wrong_states_are_eagers_own_error():
    layer, (x, first) = case("gru", (5, 6, 2, 3, {}), True)
    with torch.no_grad(), pytest.raises(RuntimeError, match="Expected hidden size"):
        compiled(layer)(x, first[:, :1])


@pytest.mark.parametrize("cell", ["gru", "rnn_relu"])
def test_training_is_left_to_pytorch(cell):
    layer, args = case(cell, (5, 6, 2, 3, {}), True)
    grads, before = [], layers_run()
    for run in (layer, compiled(layer)):
        layer.zero_grad()
        run(*args)[0].square().sum().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    torch.testing.assert_close(*grads)
    assert layers_run() == before
