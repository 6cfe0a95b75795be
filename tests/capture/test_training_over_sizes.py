"""A training step is compiled once for all sizes, and its gradients are eager's."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import firebrick
from firebrick.errors import SizesRefused
from firebrick.pipeline import _Training


def gradients(function, args, parameters):
    """What a function returns, and the gradients of its arguments and parameters."""
    leaves = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    for p in parameters:
        p.grad = None
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    sum(r.square().sum() for r in results if r.requires_grad).backward()
    return [r.detach().clone() for r in results], [t.grad for t in (*leaves, *parameters)]


def compiles(function, calls, parameters=(), **options):
    """Train with each of the arguments, and return how many graphs that took; gradients are eager's."""
    parameters = [*parameters]
    compiled, before = firebrick.compile(function, **options), firebrick.graphs_compiled()
    for args in calls:
        ours, theirs = (gradients(f, args, parameters) for f in (compiled, function))
        torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-5)
        for one, other in zip(ours[1], theirs[1], strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    return firebrick.graphs_compiled() - before


def rows(*sizes, grad=False):
    return [(torch.randn(n, 8, requires_grad=grad),) for n in sizes]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_a_perceptron_over_batches():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    assert compiles(lambda x: model(x).square().mean(), rows(3, 5, 7, 1, 9, 2, 40), model.parameters()) == 2


def test_gradients_of_inputs():
    assert compiles(lambda x: x.softmax(1) * x.sum(0), rows(3, 5, 7, 1, 9, grad=True)) == 2


def test_a_layer_of_a_transformer_over_batches_and_lengths():
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    calls = [(torch.randn(b, n, 16),) for b, n in ((2, 5), (3, 7), (1, 4), (6, 2), (4, 9), (2, 1))]
    assert compiles(model, calls, model.parameters()) <= 3


def test_convolutions_over_images():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.AvgPool2d(2))
    calls = [(torch.randn(b, 3, n, n),) for b, n in ((2, 8), (3, 8), (4, 8), (5, 8))]
    assert compiles(model, calls, model.parameters()) == 2


def test_checkpointed_layers():
    model = nn.Linear(8, 4)
    assert (
        compiles(lambda x: checkpoint(model, x, use_reentrant=False).square(), rows(3, 4, 5), model.parameters()) <= 4
    )


def test_views_of_results_and_of_arguments():
    calls = [(torch.randn(n, m, 4, requires_grad=True),) for n, m in ((3, 5), (4, 6), (2, 9), (7, 1))]

    def function(x):
        y = x.exp()
        return y, y.transpose(0, 1), y.flatten(0, 1), x.view(-1, 4), y[:, 0]

    assert compiles(function, calls) == 2


def test_an_argument_that_is_written():
    def function(x):
        y = x * 2
        y[1:] += x[:-1].sin()
        y.mul_(3)
        return y

    assert compiles(function, rows(3, 4, 5, 9, grad=True)) <= 3


def test_a_loss_of_some_results_only():
    """The backward for those is made when the sizes' guards are written."""
    first, second = nn.Linear(8, 4), nn.Linear(8, 4)

    def function(x):
        return first(x).tanh(), (first(x) * second(x)).softmax(0)

    compiled = firebrick.compile(function)
    for (x,) in rows(3, 4, 5, 6):
        for pick in (0, 1):
            grads = []
            for one in (compiled, function):
                for p in (*first.parameters(), *second.parameters()):
                    p.grad = None
                one(x)[pick].square().sum().backward()
                grads.append([p.grad for p in (*first.parameters(), *second.parameters())])
            for ours, theirs in zip(*grads, strict=True):
                assert (ours is None) == (theirs is None)
                if ours is not None:
                    torch.testing.assert_close(ours, theirs)


def test_an_optimizer_steps_between_sizes():
    steps = []
    for compile_ in (firebrick.compile, lambda f: f):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        loss = compile_(lambda x, model=model: model(x).square().mean())
        for n in (4, 6, 3, 8, 2, 7):
            optimizer.zero_grad()
            loss(torch.randn(n, 8)).backward()
            optimizer.step()
        steps.append([p.detach() for p in model.parameters()])
    torch.testing.assert_close(*steps)


def test_a_second_process_finds_both_halves(tmp_path):
    model = nn.Linear(8, 4)

    def run():
        compiled = firebrick.compile(lambda x: model(x).square().mean(), options={"cache_dir": str(tmp_path)})
        for (x,) in rows(3, 4, 5):
            compiled(x).backward()

    run()
    before = firebrick.stats()["counts"].get("cache hits", 0), firebrick.stats()["counts"].get("cache misses", 0)
    firebrick.reset()
    run()
    counts = firebrick.stats()["counts"]
    assert counts["cache misses"] == before[1], counts
    assert counts["cache hits"] > before[0]


def test_a_backward_that_can_not_be_compiled_runs_on_eager_kernels(monkeypatch):
    """Also where sizes are symbols, whose numbers it is given."""

    def fail(self, given):
        raise SizesRefused("whether s0 < 0 is asked when the guards are written")

    model = nn.Linear(8, 4)

    def function(x):
        y = model(x)
        return y.softmax(0), y.t().reshape(-1, 2) * y.shape[0], y.expand(3, -1, 4)

    calls = [(torch.randn(n, 8, requires_grad=True),) for n in (2, 4, 6)]
    compiled = firebrick.compile(function)
    for args in calls:
        if args is calls[2]:
            monkeypatch.setattr(_Training, "compiled_backward", fail)
        for pick in range(3):
            grads = []
            for one in (compiled, function):
                args[0].grad = None
                one(*args)[pick].square().sum().backward()
                grads.append(args[0].grad)
            torch.testing.assert_close(*grads)


def test_gradients_of_gradients():
    def function(x):
        return (x.sin() * x.sum(0)).sum()

    compiled = firebrick.compile(function)
    for n in (3, 4, 5, 6):
        grads = []
        for one in (compiled, function):
            x = torch.linspace(-1, 1, n * 8).view(n, 8).requires_grad_()
            (first,) = torch.autograd.grad(one(x), x, create_graph=True)
            grads.append(torch.autograd.grad(first.square().sum(), x)[0])
        torch.testing.assert_close(*grads)
