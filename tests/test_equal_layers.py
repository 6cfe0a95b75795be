"""Graphs of many equal layers: four of them are compiled, the others follow, with the same results bit for bit."""

import random
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick
from firebrick import fuse, pipeline
from firebrick.ir.graph.equal_layers import NotAlike, find_repeat, shortened
from firebrick.tools.models import build_model


class Layer(nn.Module):
    def __init__(self, width=16, inner=32):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, inner), nn.Linear(inner, width), nn.LayerNorm(width)

    def forward(self, x, mask):
        y = self.down(F.gelu(self.up(x)))
        return self.norm(x + torch.where(mask, y, y * 0.5))


class Layers(nn.Module):
    def __init__(self, count, make=Layer):
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(count))
        self.head = nn.Linear(16, 3)

    def forward(self, x, mask):
        mask = mask > 0
        x = torch.relu(x)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def inputs():
    torch.manual_seed(1)
    return torch.randn(5, 16), torch.randn(5, 16)


def compiled_both_ways(fn, args, monkeypatch):
    """Results with and without repetition, and how many layers were repeated."""
    torch.manual_seed(0)
    results, counts = [], []
    for whole in (False, True):
        firebrick.reset()
        before = firebrick.stats()["counts"].get("repeats", 0)
        with monkeypatch.context() as patch:
            if whole:
                patch.setattr(pipeline, "find_repeat", lambda graph: None)
            with torch.no_grad():
                results.append(firebrick.compile(fn, options={"cache": False})(*args))
        counts.append(firebrick.stats()["counts"].get("repeats", 0) - before)
    assert counts[1] == 0
    return *results, counts[0]


def check(fn, args, monkeypatch, layers):
    mine, whole, repeated = compiled_both_ways(fn, args, monkeypatch)
    with torch.no_grad():
        plain = fn(*args)
    torch.testing.assert_close(mine, plain)
    torch.testing.assert_close(mine, whole, rtol=0, atol=0)
    assert repeated == layers


@pytest.mark.compiler
@pytest.mark.parametrize("count", [6, 9])
def test_equal_layers_give_what_compiling_each_gives(count, monkeypatch):
    check(Layers(count).eval(), inputs(), monkeypatch, count)


@pytest.mark.compiler
def test_few_layers_are_compiled_one_by_one(monkeypatch):
    check(Layers(4).eval(), inputs(), monkeypatch, 0)


@pytest.mark.compiler
def test_layers_that_share_their_weights(monkeypatch):
    layer = Layer()
    check(Layers(8, lambda: layer).eval(), inputs(), monkeypatch, 8)


@pytest.mark.compiler
def test_layers_of_which_two_are_tied_are_compiled_one_by_one(monkeypatch):
    model = Layers(8).eval()
    model.layers[5].up.weight = model.layers[2].up.weight
    check(model, inputs(), monkeypatch, 0)


@pytest.mark.compiler
def test_a_layer_that_differs_in_the_middle(monkeypatch):
    model = Layers(13).eval()
    model.layers[6].norm.eps = 0.5
    mine, whole, repeated = compiled_both_ways(model, inputs(), monkeypatch)
    torch.testing.assert_close(mine, whole, rtol=0, atol=0)
    assert repeated == 6


@pytest.mark.compiler
def test_results_of_all_layers_are_wanted(monkeypatch):
    class Every(Layers):
        def forward(self, x, mask):
            seen = []
            x = torch.relu(x)
            for layer in self.layers:
                x = layer(x, mask > 0)
                seen.append(x)
            return seen

    check(Every(8).eval(), inputs(), monkeypatch, 0)


@pytest.mark.compiler
def test_each_layer_reads_the_one_before_the_last(monkeypatch):
    def f(x, mask):
        before = x
        for _ in range(9):
            x, before = torch.tanh(x @ mask.t() @ mask + before).softmax(-1) + x.mean(-1, keepdim=True) * 0.5, x
        return x

    check(f, inputs(), monkeypatch, 0)


@pytest.mark.compiler
def test_layers_without_modules_and_with_tensors_written_in_the_code(monkeypatch):
    def f(x, mask):
        x = x.sin()
        for _ in range(8):
            scale = torch.tensor([1.0, 2.0] * 8)
            y = (x * scale).softmax(-1) @ mask.t()
            x = F.layer_norm(y @ mask + x, (16,)) * 2 + x.amax(-1, keepdim=True)
        return x

    check(f, inputs(), monkeypatch, 8)


@pytest.mark.compiler
def test_layers_that_change_their_buffers_are_compiled_one_by_one(monkeypatch):
    class Counting(Layer):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x, mask):
            self.calls += 1
            return super().forward(x, mask) * self.calls

    model = Layers(8, Counting).eval()
    with torch.no_grad():
        plain = model(*inputs())
        model.load_state_dict({k: v * 0 if k.endswith("calls") else v for k, v in model.state_dict().items()})
        torch.testing.assert_close(firebrick.compile(model)(*inputs()), plain)
    assert all(layer.calls == 1 for layer in model.layers)


@pytest.mark.compiler
def test_changed_weights_of_a_layer_that_was_left_out_are_seen():
    model = Layers(8).eval()
    for layer in model.layers:
        layer.up, layer.down = nn.Linear(16, 4096), nn.Linear(4096, 16)
    compiled = firebrick.compile(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*inputs()), model(*inputs()))
        model.layers[4].down.weight.mul_(3)
        model.layers[5].norm.bias.add_(1)
        torch.testing.assert_close(compiled(*inputs()), model(*inputs()))
        model.layers[6].up = nn.Linear(16, 4096)
        torch.testing.assert_close(compiled(*inputs()), model(*inputs()))


BODIES = (
    lambda x, m: torch.relu(x) + m,
    lambda x, m: F.gelu(x) * 0.5,
    lambda x, m: x.softmax(-1),
    lambda x, m: F.layer_norm(x, (16,)),
    lambda x, m: x @ m.t() @ m,
    lambda x, m: torch.where(m > 0, x, -x),
    lambda x, m: x - x.mean(0, keepdim=True),
    lambda x, m: torch.cat([x[:, 8:], x[:, :8]], 1),
    lambda x, m: x.view(5, 4, 4).transpose(1, 2).reshape(5, 16),
    lambda x, m: x + x.flip(0),
    lambda x, m: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5),
    lambda x, m: x.clamp(-2, 2) + m.sum(),
)


@pytest.mark.compiler
@pytest.mark.parametrize("seed", range(12))
def test_random_layers(seed, monkeypatch):
    rng = random.Random(seed)
    steps = [rng.choice(BODIES) for _ in range(rng.randint(5, 9))]
    skips = [rng.random() < 0.3 for _ in steps]

    def f(x, mask):
        x = x * 2
        for _ in range(7):
            for step, skip in zip(steps, skips, strict=True):
                x = x + step(x, mask) if skip else step(x, mask)
        return x.sum(-1), x

    mine, whole, _ = compiled_both_ways(f, inputs(), monkeypatch)
    torch.testing.assert_close(mine, whole, rtol=0, atol=0)


def trained_both_ways(model, args, monkeypatch, loss=lambda y: y.square().sum()):
    """Results and gradients with and without repetition, and how many layers were repeated, forward and backward."""
    results, counts = [], []
    for whole in (False, True):
        firebrick.reset()
        before = firebrick.stats()["counts"].get("repeats", 0)
        with monkeypatch.context() as patch:
            if whole:
                patch.setattr(pipeline, "find_repeat", lambda graph: None)
            results.append(trained(firebrick.compile(model, options={"cache": False}), model, args, loss))
        counts.append(firebrick.stats()["counts"].get("repeats", 0) - before)
    assert counts[1] == 0
    return *results, counts[0]


def trained(fn, model, args, loss=lambda y: y.square().sum()):
    model.zero_grad()
    torch.manual_seed(3)
    leaves = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
    result = fn(*leaves)
    loss(result).backward()
    return result, [leaf.grad for leaf in leaves], [p.grad for p in model.parameters()]


def check_training(model, args, monkeypatch, layers, **how):
    mine, whole, repeated = trained_both_ways(model, args, monkeypatch, **how)
    torch.testing.assert_close(mine, whole, rtol=0, atol=0)
    torch.testing.assert_close(mine, trained(model, model, args, **how), rtol=1e-4, atol=1e-4)
    assert repeated == layers


class Dropping(Layer):
    def forward(self, x, mask):
        return super().forward(F.dropout(x, 0.3), mask)


@pytest.mark.compiler
@pytest.mark.parametrize("make", [Layer, Dropping])
@pytest.mark.parametrize("count", [6, 9])
def test_equal_layers_train_as_when_each_is_compiled(count, make, monkeypatch):
    mine, whole, repeated = trained_both_ways(Layers(count, make), inputs(), monkeypatch)
    torch.testing.assert_close(mine, whole, rtol=0, atol=0)
    assert repeated == 2 * count
    if make is Layer:
        check_training(Layers(count), inputs(), monkeypatch, 2 * count)


@pytest.mark.compiler
def test_gradients_of_shared_weights_are_summed_over_all_layers(monkeypatch):
    layer = Layer()
    check_training(Layers(8, lambda: layer), inputs(), monkeypatch, 8)


@pytest.mark.compiler
def test_layers_train_of_which_one_is_frozen(monkeypatch):
    model = Layers(12)
    model.layers[5].requires_grad_(False)
    check_training(model, inputs(), monkeypatch, 12)


@pytest.mark.compiler
def test_some_results_have_gradients_and_the_forward_is_in_the_cache(monkeypatch):
    class Two(Layers):
        def forward(self, x, mask):
            return super().forward(x, mask), torch.tanh(x + mask)

    model = Two(7)
    for loss in (lambda y: y[0].square().sum(), lambda y: y[0].sum() + y[1].sum()):
        firebrick.reset()
        compiled = firebrick.compile(model)
        mine = trained(compiled, model, inputs(), loss)
        torch.testing.assert_close(mine, trained(model, model, inputs(), loss), rtol=1e-4, atol=1e-4)


@pytest.mark.compiler
@pytest.mark.parametrize("strict", [True, False])
def test_a_backward_whose_layers_differ_takes_what_the_forward_saved(strict, monkeypatch):
    unroll = fuse.unroll

    def refuse(program, steps, kernels, repeat):
        if repeat.backward:
            raise NotAlike("refused") if strict else ValueError("refused")
        return unroll(program, steps, kernels, repeat)

    monkeypatch.setattr(fuse, "unroll", refuse)
    model = Layers(8)
    compiled = firebrick.compile(model, options={"cache": False, "strict": strict})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mine = trained(compiled, model, inputs())
    torch.testing.assert_close(mine, trained(model, model, inputs()), rtol=1e-4, atol=1e-4)


@pytest.mark.compiler
@pytest.mark.parametrize("seed", range(12))
def test_random_layers_train(seed, monkeypatch):
    rng = random.Random(seed)
    steps = [rng.choice(BODIES) for _ in range(rng.randint(5, 9))]

    class Random(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(16)), nn.Parameter(torch.zeros(16))

        def forward(self, x, mask):
            y = x
            for step in steps:
                y = step(y, mask) * self.scale
            return x + torch.tanh(y + self.shift)

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Random() for _ in range(7))

        def forward(self, x, mask):
            x = x * 2
            for layer in self.layers:
                x = layer(x, mask)
            return x

    mine, whole, _ = trained_both_ways(Stack(), inputs(), monkeypatch)
    torch.testing.assert_close(mine, whole, rtol=0, atol=0)


@pytest.mark.models
@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_models_train_with_the_same_kernels_however_deep(name):
    kernels = set()
    for layers in (7, 10):
        model, args = build_model(name, layers=layers, width=64)
        firebrick.reset()
        before = dict(firebrick.stats()["counts"])
        firebrick.compile(model, options={"cache": False})(**args)[0].sum().backward()
        after = firebrick.stats()["counts"]
        kernels.add(after["kernels"] - before.get("kernels", 0))
        assert after["repeats"] - before.get("repeats", 0) >= 2 * (layers - 2)
    assert len(kernels) == 1


@pytest.mark.models
@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_models_compile_the_same_kernels_however_deep(name, monkeypatch):
    kernels = set()
    for layers in (7, 10):
        model, args = build_model(name, layers=layers, width=64)
        firebrick.reset()
        before = dict(firebrick.stats()["counts"])
        with torch.no_grad():
            out, plain = firebrick.compile(model, options={"cache": False})(**args), model(**args)
        torch.testing.assert_close(out[0], plain[0])
        after = firebrick.stats()["counts"]
        kernels.add(after["kernels"] - before.get("kernels", 0))
        assert after["repeats"] - before.get("repeats", 0) >= layers - 2
    assert len(kernels) == 1


def test_a_shortened_graph_keeps_three_layers_and_the_last():
    graphs = []

    def keep(gm, example_inputs):
        graphs.append(gm)
        return gm.forward

    with torch.no_grad():
        firebrick.compile(Layers(7).eval(), backend=keep)(*inputs())
    gm = graphs[0]
    repeat = find_repeat(gm.graph)
    assert repeat is not None and len(repeat.numbers) == 7
    short = shortened(gm, repeat)
    kept = [node.target for node in short.graph.nodes if node.op == "get_attr" and "up_weight" in node.target]
    every = [node.target for node in gm.graph.nodes if node.op == "get_attr" and "up_weight" in node.target]
    assert kept == [every[0], every[1], every[2], every[6]]
    assert short(*inputs())[0].shape == (5, 3)
