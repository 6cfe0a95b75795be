"""`torch.autograd.grad` in captured code is part of the graph, with gradients of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint

import firebrick
from firebrick.errors import Unsupported

torch.manual_seed(0)
W = nn.Parameter(torch.randn(3, 3).double())


def network(*middle):
    return nn.Sequential(nn.Linear(3, 5), *middle, nn.Linear(5, 2)).double()


NETWORKS = {
    "tanh": network(nn.Tanh()),
    "relu": network(nn.ReLU(inplace=True)),
    "gelu": network(nn.GELU()),
    "layer_norm": network(nn.LayerNorm(5)),
    "batch_norm": network(nn.BatchNorm1d(5), nn.Tanh()),
    "softmax": network(nn.Softmax(-1)),
    "dropout": network(nn.Tanh(), nn.Dropout(0.5)),
    "twelve_layers": network(*[layer for _ in range(12) for layer in (nn.Linear(5, 5), nn.SiLU())]),
}
NET = NETWORKS["tanh"]
EVERY = [W, *(p for net in NETWORKS.values() for p in net.parameters())]


class Cube(torch.autograd.Function):
    """Has a second derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 3 * x**2


class Clip(torch.autograd.Function):
    """Its gradient is not linear."""

    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-0.5, 0.5)


def of(net):
    def energy_and_slope(x):
        energy = net(x)
        return energy, grad(energy.square().sum(), x, create_graph=True)[0]

    return energy_and_slope


def forces(x):
    energy = (x[:, None] - x[None]).square().sum(-1).add(1).sqrt().neg().exp().sum()
    return energy, -grad(energy, x, create_graph=True)[0]


def heat(x):
    u = NET(x)[:, :1]
    (first,) = grad(u, x, torch.ones_like(u), create_graph=True)
    (second,) = grad(first[:, 0:1], x, grad_outputs=torch.ones_like(u), create_graph=True)
    return u, (first[:, 1:2] + u * first[:, :1] - second[:, :1]).square().mean()


def laplacian(x):
    (first,) = grad(NET(x).sum(), x, create_graph=True)
    rows = [grad(first[:, i].sum(), x, create_graph=True, retain_graph=True)[0][:, i] for i in range(3)]
    return rows[0] + rows[1] + rows[2]


def third(x):
    value = (x @ W).sin().sum()
    for _ in range(3):
        value = grad(value, x, create_graph=True)[0].sum()
    return value


def penalty(x):
    (slope,) = grad(NET(x).sum(), x, create_graph=True)
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()


def inner_steps(x):
    weight = W
    for _ in range(2):
        (slope,) = grad((x @ weight).sin().square().mean(), weight, create_graph=True)
        weight = weight - 0.1 * slope
    return (x @ weight).cos().mean()


def of_parameters(x):
    loss = NET(x).square().mean()
    return loss + sum(g.square().sum() for g in grad(loss, NET.parameters(), create_graph=True))


def of_what_is_made(x):
    h = (x @ W).tanh()
    loss = NET(h).square().mean()
    return loss, h * grad(loss, h, create_graph=True)[0]


def unused(x):
    a, b = grad((x @ W).sin().sum(), [x, NET[0].weight], allow_unused=True, create_graph=True)
    return a if b is None else a + b.sum()


def not_kept(x):
    energy = NET(x).sum()
    return energy.detach(), grad(energy, x)[0]


def kept(x):
    energy = NET(x).sum()
    return energy * 2, grad(energy, x, retain_graph=True)[0]


def of_a_function(x):
    y = Cube.apply(x @ W)
    return y, grad(y.sum(), x, create_graph=True)[0]


def of_a_clipped_function(x):
    y = Clip.apply(x @ W) * 3
    return y.detach(), grad(y.sum(), x, create_graph=True)[0]


def through_a_checkpoint(x):
    y = checkpoint(lambda x: torch.dropout(NET(x), 0.5, True), x, use_reentrant=False)
    return y, grad(y.square().sum(), x, create_graph=True)[0]


def hooked(x):
    y = x @ W
    y.register_hook(lambda g: g * 2)
    return y.sin(), grad(y.sin().sum(), x, create_graph=True)[0]


def through_a_transform(x):
    y = torch.func.vmap(lambda row: (row @ W).sin())(x)
    return y, grad(y.sum(), x, create_graph=True)[0]


def written(x):
    y = (x @ W).mul_(2).sin_()
    g = grad(y.sum(), x, create_graph=True)[0] * 1
    return y, g.add_(1)


def halves(x):
    a, b = (x @ W).sin().chunk(2)
    return a, b, grad(a.sum() + (b * b).sum(), x, create_graph=True)[0]


def before_what_data_decide(x):
    g = grad((x @ W).sin().sum(), x, create_graph=True)[0]
    return g[(g[:, 0] > -5).nonzero()[:, 0]]


WHOLE = {
    **{name: of(net) for name, net in NETWORKS.items()},
    **{f.__name__: f for f in (forces, heat, laplacian, third, penalty, inner_steps, of_parameters, of_what_is_made)},
    **{f.__name__: f for f in (unused, not_kept, kept, of_a_function, of_a_clipped_function, through_a_checkpoint)},
    **{f.__name__: f for f in (hooked, through_a_transform, written, halves, before_what_data_decide)},
}


def run(function, x, second=False, argument=lambda x: x):
    """Results, whether they want gradients, gradients, and the error if there is one."""
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    try:
        results = function(argument(x))
        results = results if isinstance(results, tuple) else (results,)
        wanting = [r.sin().sum() for r in results if r.requires_grad]
        gradients = []
        if wanting:
            gradients = grad(sum(wanting), [x, *EVERY], allow_unused=True, create_graph=second)
        if second:
            again = sum(g.square().sum() for g in gradients if g is not None and g.requires_grad)
            gradients += grad(again, [x, *EVERY], allow_unused=True)
        return [r.detach() for r in results], [r.requires_grad for r in results], gradients
    except RuntimeError as error:
        return str(error)[:60]


def same(function, compiled, sizes=(4, 6), **how):
    for n in sizes:
        x = torch.randn(n, 3).double()
        wanted, got = run(function, x, **how), run(compiled, x, **how)
        if isinstance(wanted, str):
            assert got == wanted
        else:
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name):
    before = firebrick.stats()["counts"].get("graphs", 0)
    same(WHOLE[name], firebrick.compile(WHOLE[name], fullgraph=True), (4, 6, 7))
    assert firebrick.stats()["counts"]["graphs"] - before <= 3


@pytest.mark.parametrize("name", ["tanh", "batch_norm", "dropout", "heat", "inner_steps", "of_a_function", "halves"])
def test_gradients_of_its_gradients(name):
    same(WHOLE[name], firebrick.compile(WHOLE[name], fullgraph=True), second=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["tanh", "heat", "not_kept", "inner_steps"])
def test_other_backends(name, backend):
    same(WHOLE[name], firebrick.compile(WHOLE[name], backend=backend, fullgraph=True))


@pytest.mark.parametrize("argument", [lambda x: x, lambda x: x * 1])
def test_a_leaf_or_not(argument):
    same(forces, firebrick.compile(forces, fullgraph=True), argument=argument)


def test_without_gradients_around_it():
    def sampled(x):
        with torch.enable_grad():
            energy = (x @ W).cos().sum()
            (slope,) = grad(energy, x)
        return x + 0.1 * slope + torch.randn_like(x)

    compiled = firebrick.compile(sampled, fullgraph=True)
    with torch.no_grad():
        same(sampled, compiled)
    same(sampled, compiled)


def of_an_unused(x):
    return grad(W.sin().sum(), x)[0]


def of_an_unused_and_caught(x):
    try:
        return grad(W.sin().sum(), x)[0]
    except RuntimeError:
        return x * 2


def twice(x):
    energy = (x @ W).sin().sum()
    return grad(energy, x)[0] + grad(energy, x)[0]


def of_no_history(x):
    return grad(x.detach().sum(), x)[0]


def of_no_scalar(x):
    return grad(x @ W, x)[0]


def freed(x):
    energy = NET(x).sum()
    return energy, grad(energy, x)[0]


@pytest.mark.parametrize("function", [of_an_unused, of_an_unused_and_caught, twice, of_no_history, of_no_scalar, freed])
def test_errors_of_eager_mode(function):
    same(function, firebrick.compile(function))


def behind_a_break(x):
    y = (x @ W).sin()
    firebrick.graph_break()
    return grad(y.exp().sum(), x, create_graph=True)[0]


def of_both_sides_of_a_break(x):
    y = (x @ W).sin()
    firebrick.graph_break()
    return grad(y.exp().sum(), [x, y], create_graph=True)


def of_the_break_itself(x):
    y = (x @ W).sin()
    firebrick.graph_break()
    return grad(y.exp().sum(), y, create_graph=True)[0]


def between_what_data_decide(x):
    y = (x @ W).sin()
    loss = y[(y[:, 0] > -5).nonzero()[:, 0]].square().sum()
    return loss, grad(loss, x, create_graph=True)[0]


def of_a_batch(x):
    y = (x @ W).sin()
    return grad(y.flatten(), x, torch.eye(y.numel()).double(), is_grads_batched=True)[0]


def upstream_of_an_argument(x):
    y = (x @ W).sin()
    return firebrick.compile(lambda y: grad(y.exp().sum(), [y, x], create_graph=True)[1])(y)


BREAKS = [behind_a_break, of_both_sides_of_a_break, of_the_break_itself, between_what_data_decide, of_a_batch]


@pytest.mark.parametrize("function", [*BREAKS, upstream_of_an_argument])
def test_histories_that_are_partly_outside(function):
    same(function, firebrick.compile(function))


def test_hooks_of_inputs():
    def hooked(x):
        y = x * 1
        y.register_hook(lambda g: g * 10)
        y.retain_grad()
        return y

    compiled = firebrick.compile(forces)
    same(forces, compiled)
    same(forces, compiled, argument=lambda x: x * 1)
    same(forces, compiled, argument=hooked)
    with pytest.raises(Unsupported, match="hooks"):
        firebrick.compile(forces, fullgraph=True)(hooked(torch.randn(4, 3).double().requires_grad_()))


def test_one_graph_each_way():
    before = firebrick.stats()["counts"]
    compiled = firebrick.compile(forces, fullgraph=True)
    for _ in range(3):
        sum(r.sum() for r in compiled(torch.randn(4, 3).double().requires_grad_())).backward()
    after = firebrick.stats()["counts"]
    assert [after[k] - before.get(k, 0) for k in ("graphs", "backward graphs compiled")] == [1, 1]


def of_what_was_given(data):
    positions = data["positions"].requires_grad_(True)
    energy = NET(positions).sum()
    return energy, -grad(energy, positions, create_graph=True)[0]


def of_what_was_read(data):
    y = data["positions"] * 2
    data["positions"].requires_grad_()
    return y, NET(data["positions"])


def given_and_returned(data):
    data["positions"].requires_grad_()
    return data["positions"], data["positions"].requires_grad


@pytest.mark.parametrize("function", [of_what_was_given, of_what_was_read, given_and_returned])
def test_gradients_are_switched_on(function):
    compiled = firebrick.compile(function, fullgraph=function is of_what_was_given)
    for n in (4, 6, 6):
        x, rows = torch.randn(n, 3).double(), []
        for f in (function, compiled):
            data = {"positions": x.clone()}
            results = f(data)
            sum(r.square().sum() for r in results if isinstance(r, torch.Tensor) and r.requires_grad).backward()
            f(data)  # it wants gradients now
            rows.append((results, data["positions"].grad, data["positions"].is_leaf))
        torch.testing.assert_close(*rows)


def free(x):
    y = (x @ W).sin() @ W
    (g,) = grad(y.sum(), x, create_graph=True)
    return y, g, (y * g).sum()


def read_by_its_gradient(x):
    y = (x @ W).tanh()
    (g,) = grad(y.sum(), x, create_graph=True)
    return y, g, (y * g).sum()


def read_in_turn(x):
    y = (x @ W).sin() @ W
    (g,) = grad(y.sum(), x, create_graph=True)
    return y, g, (y * g * grad(g.square().sum(), x, create_graph=True)[0]).sum()


def seen_by_hooks(x, y, g, loss):
    seen = []
    y.register_hook(lambda t: seen.append(t.clone()))
    y.retain_grad(), g.retain_grad()
    return *grad(loss + g.sum(), [x, W], retain_graph=True), *seen, *grad(loss, [x, W])


WAYS = {
    "results": lambda x, y, g, loss: grad(loss, [y, g]),
    "one": lambda x, y, g, loss: grad(loss + y.sin().sum(), [y]),
    "leaves": lambda x, y, g, loss: grad(loss, [x, W]),
    "all": lambda x, y, g, loss: grad(loss + (y * y).sum(), [x, W, y]),
    "hooks": seen_by_hooks,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [free, read_by_its_gradient, read_in_turn])
def test_gradients_between_results(function, way):
    x = torch.randn(4, 3).double().requires_grad_()
    compiled = firebrick.compile(function, fullgraph=True)
    torch.testing.assert_close(WAYS[way](x, *compiled(x)), WAYS[way](x, *function(x)))
