"""A result that another result was computed from got no gradient of it: all results were those of one node."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import firebrick


class Head(nn.Module):
    """As models of transformers: the loss and the logits, and what leads to these."""

    def __init__(self, layers=0, width=8):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x, labels, hidden=False):
        states = [torch.tanh(self.embed(x))]
        for layer in self.layers:
            states.append(layer(states[-1]))
        logits = self.head(states[-1])
        return {"loss": F.cross_entropy(logits, labels), "logits": logits, "hidden": states if hidden else None}


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(width, 12), nn.Linear(12, width), nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x + self.down(F.gelu(self.up(x))))


def data():
    torch.manual_seed(1)
    return torch.randn(5, 4), torch.randint(0, 3, (5,))


def chain(x, w):
    a = (x @ w).sin()
    b = (a * 2).exp() + w.sum()
    c = (b / 3).tanh() * x
    return c.square().sum(), a, b, c


def bypassed(x, w):
    h = (x @ w).sin()
    y = h.exp()
    return y, (y * h).sum()


def side(x, w):
    z = w.exp() * 2
    y = (x @ w).sin()
    return z, (y * z).sum(), y


def crossed(x, w):
    h, z = (x * 2).sin(), w.cos()
    y = h.exp()
    return y, (y * z.exp()).sum(), h + z


def parts(x, w):
    a, b = (x @ w).sin().chunk(2)
    return a, b, (a * b).sum()


def written(x, w):
    y = (x @ w).sin()
    loss = (y * 2).sum()
    y.mul_(3)
    return y, loss


def written_before(x, w):
    y = (x @ w).sin()
    y.mul_(3)
    return y, y.square().sum()


def view(x, w):
    y = (x @ w).sin()
    return y.t(), (y.t() @ x).sum()


def both_ways(x, w):
    y, z = (x @ w).sin(), (w @ x).cos()
    return (y * z).sum(), y, z, (y + z).sin()


def twice(x, w):
    y = (x @ w).sin()
    return y, y, y.exp().sum()


def detached(x, w):
    y = (x @ w).sin()
    return y, y.detach(), y.exp().sum()


def without_gradients(x, w):
    y = (x @ w).sin()
    with torch.no_grad():
        scale = y.max()
    return y, (y * scale).sum(), scale


def random(x, w):
    y = F.dropout(x @ w, 0.5)
    return y, F.dropout(y.sin(), 0.5).sum()


FUNCTIONS = [
    chain, bypassed, side, crossed, parts, written, written_before, view, both_ways, twice, detached,
    without_gradients, random,
]  # fmt: skip


def leaves():
    torch.manual_seed(2)
    return [torch.randn(4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]


def outcome(fn, ask):
    x, w = leaves()
    torch.manual_seed(3)
    found = ask([r for r in fn(x, w) if r.requires_grad], x, w)
    return [*found, x.grad, w.grad]


def agree(fn, asks, backend="firebrick"):
    compiled = firebrick.compile(fn, backend=backend)
    for ask in asks:
        for mine, plain in zip(outcome(compiled, ask), outcome(fn, ask), strict=True):
            assert (mine is None) == (plain is None), ask
            torch.testing.assert_close(mine, plain)


def weighed(results):
    return sum((r.square() * (i + 1)).sum() for i, r in enumerate(results))


def backward_of_all(results, x, w):
    weighed(results).backward()
    return []


def each_alone(results, x, w):
    return [
        g
        for r in results
        for g in torch.autograd.grad(r.sum(), [x, w], retain_graph=True, allow_unused=True)
    ]  # fmt: skip


def between(results, x, w):
    return [
        g
        for r in results
        for g in torch.autograd.grad(r.sum(), results, retain_graph=True, allow_unused=True)
    ]  # fmt: skip


def retained(results, x, w):
    for r in results:
        r.retain_grad()
    weighed(results).backward()
    return [r.grad for r in results]


def hooked(results, x, w):
    seen = []
    for i, r in enumerate(results):
        r.register_hook(lambda g, i=i: seen.append((i, g.clone())) or g * (i + 2))
    weighed(results).backward()
    return [g for _, g in sorted(seen, key=lambda row: row[0])]


def second(results, x, w):
    rows = [*results, x, w]
    first = [g for g in torch.autograd.grad(weighed(results), rows, create_graph=True) if g is not None]
    total = sum((g.sin() * (i + 1)).sum() for i, g in enumerate(first))
    return [*first, *torch.autograd.grad(total, rows, retain_graph=True, allow_unused=True)]


@pytest.mark.compiler
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gradients_of_the_inputs_are_those_of_eager(fn):
    agree(fn, [backward_of_all, each_alone])


@pytest.mark.compiler
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_gradients_between_results_are_those_of_eager(fn):
    agree(fn, [between, retained, hooked, second])


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_on_eager_kernels_too(fn):
    agree(fn, [between, hooked, second], backend="aot_eager")


@pytest.mark.compiler
def test_with_sizes_that_vary():
    compiled = firebrick.compile(chain, dynamic=True)
    for size in (4, 6):
        w = torch.randn(size, size, dtype=torch.float64, requires_grad=True)
        x = torch.randn(size, size, dtype=torch.float64)
        for ask in (between, second):
            for mine, plain in zip(ask(compiled(x, w), w, w), ask(chain(x, w), w, w), strict=True):
                torch.testing.assert_close(mine, plain)


@pytest.mark.compiler
@pytest.mark.parametrize("layers", [0, 7])
def test_loss_and_logits_of_a_model(layers):
    torch.manual_seed(0)
    model = Head(layers)
    compiled, (x, labels) = firebrick.compile(model), data()

    def steps(run):
        model.zero_grad()
        out = run(x, labels)
        out["logits"].retain_grad()
        found = [*torch.autograd.grad(out["loss"], [out["logits"]], retain_graph=True)]
        out["loss"].backward(retain_graph=True)
        found += [out["logits"].grad.clone(), *[p.grad for p in model.parameters()]]
        model.zero_grad()
        out["logits"].sum().backward()
        return [*found, out["logits"].grad, *[p.grad for p in model.parameters()]]

    for mine, plain in zip(steps(compiled), steps(model), strict=True):
        torch.testing.assert_close(mine, plain)


@pytest.mark.compiler
def test_equal_layers_before_a_result_are_compiled_once():
    torch.manual_seed(0)
    model = Head(7)
    before = firebrick.stats()["counts"].get("repeats", 0)
    firebrick.compile(model, options={"cache": False})(*data())["loss"].backward()
    assert firebrick.stats()["counts"]["repeats"] - before == 14  # the layers of the forward, and of its backward


@pytest.mark.compiler
def test_every_hidden_state_has_its_gradient():
    torch.manual_seed(0)
    model = Head(4)
    compiled, (x, labels) = firebrick.compile(model), data()
    rows = []
    for run in (compiled, model):
        out = run(x, labels, hidden=True)
        rows.append(torch.autograd.grad(out["loss"], [out["logits"], *out["hidden"]]))
    for mine, plain in zip(*rows, strict=True):
        torch.testing.assert_close(mine, plain)


@pytest.mark.compiler
def test_a_changed_gradient_flows_on():
    torch.manual_seed(0)
    model = Head(1)
    compiled, (x, labels) = firebrick.compile(model), data()
    for run in (compiled, model):
        out = run(x, labels)
        out["logits"].register_hook(torch.zeros_like)
        model.zero_grad()
        out["loss"].backward()
        assert all((p.grad == 0).all() for p in model.parameters())


@pytest.mark.compiler
def test_frozen_layers_before_a_result():
    torch.manual_seed(0)
    model = Head(1)
    model.embed.requires_grad_(False)
    compiled, (x, labels) = firebrick.compile(model), data()
    compiled(x, labels)["loss"].backward()
    assert model.embed.weight.grad is None and model.head.weight.grad is not None


@pytest.mark.compiler
def test_without_gradients_there_is_no_node():
    model = Head(1)
    with torch.no_grad():
        out = firebrick.compile(model)(*data())
    assert out["loss"].grad_fn is None and out["logits"].grad_fn is None


@pytest.mark.compiler
def test_a_result_written_to_by_the_caller():
    def steps(run):
        x, w = leaves()
        loss, a, b, c = run(x, w)
        with torch.no_grad():
            b.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def run(x, w):
        a = (x @ w).sin()
        b = a.exp()
        return (b * b).sum(), a, b, a.sum()

    steps(run)
    steps(firebrick.compile(run))


@pytest.mark.compiler
def test_within_one_captured_backward():
    torch.manual_seed(0)
    model = Head(2)
    compiled, (x, labels) = firebrick.compile(model), data()
    found = []
    for run, backward in ((compiled, firebrick.compiled_backward()), (model, torch.enable_grad())):
        model.zero_grad()
        seen = []
        with backward:
            out = run(x, labels)
            out["logits"].register_hook(lambda g, seen=seen: seen.append(g) or g * 2)
            (out["loss"] + out["logits"].sum()).backward()
        found.append([*seen, *[p.grad for p in model.parameters()]])
    for mine, plain in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain)


@pytest.mark.compiler
def test_saved_tensors_that_hooks_pack():
    torch.manual_seed(0)
    model = Head(1)
    compiled, (x, labels) = firebrick.compile(model), data()
    found = []
    for run in (compiled, model):
        model.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            out = run(x, labels)
        g = torch.autograd.grad(out["loss"], [out["logits"], model.embed.weight], create_graph=True)
        (g[0].square().sum() + g[1].square().sum()).backward()
        found.append([*g, *[p.grad for p in model.parameters()]])
    for mine, plain in zip(*found, strict=True):
        torch.testing.assert_close(mine, plain)
