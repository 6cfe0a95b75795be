"""`check=accuracy`: each compiled graph beside eager as it runs. `check=guards` and `stages`, which bisecting uses."""

import re
import warnings

import pytest
import torch
from torch import nn

import firebrick
from firebrick.api import accuracy
from firebrick.capture.guards.guard_set import Guards
from firebrick.errors import VerificationError
from firebrick.report import FirebrickWarning, recorder

OPTIONS = {"check": "accuracy", "strict": True}


@pytest.fixture(autouse=True)
def nothing_was_seen(monkeypatch):
    monkeypatch.setattr(recorder, "_warned", set())
    recorder.reset()
    firebrick.reset()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Linear(32, 16)

    def forward(self, x):
        return self.last(nn.functional.dropout(nn.functional.gelu(self.norm(self.first(x))), 0.5, self.training))


def write_and_view(x, y):
    x.add_(1)
    return y.view(-1), x * y.sum(), y.argmax()


def wrong(monkeypatch, change):
    """Have `change` done to what every compiled graph returns."""
    right = accuracy.pipeline.compile_graph

    def compile_wrongly(gm, *args):
        run = right(gm, *args)
        return lambda *inputs: change(*inputs, results=run(*inputs))

    monkeypatch.setattr(accuracy.pipeline, "compile_graph", compile_wrongly)


@pytest.mark.compiler
def test_a_right_program_computes_what_it_does_without_the_check():
    ends = []
    for options in ({}, OPTIONS):
        torch.manual_seed(0)
        model = Net()
        compiled = firebrick.compile(model, options=options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            compiled(torch.randn(8, 16, requires_grad=True) * 2).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        ends.append([*model.state_dict().values(), torch.rand(3)])
    assert all(map(torch.equal, *ends))
    assert "calls that check=accuracy can't compare" not in firebrick.stats()["counts"]


@pytest.mark.compiler
def test_arguments_written_in_place_are_written_once():
    x, y = torch.zeros(4), torch.rand(2, 2)
    view, _, _ = firebrick.compile(write_and_view, options=OPTIONS)(x, y)
    assert x.eq(1).all() and view.data_ptr() == y.data_ptr()
    inner = torch.ones(4, requires_grad=True)
    firebrick.compile(lambda x: x.mul_(3).sin(), options=OPTIONS)(inner * 2).sum().backward()
    torch.testing.assert_close(inner.grad, 6 * torch.cos(torch.full((4,), 6.0)))


@pytest.mark.compiler
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda x, y, results: (results[0], results[1] * 1.001, results[2]), r"result 1 \(mul\) is off by 1\.0e-03"),
        (lambda x, y, results: (results[0].clone(), *results[1:]), "result 0 shares memory with an argument"),
        (lambda x, y, results: x.add_(1) and results, "argument 0 after the call is off by"),
        (lambda x, y, results: (*results[:2], results[2] + 1), "1 of 1 elements of result 2"),
        (lambda x, y, results: (*results[:2], results[2].int()), "has dtype torch.int32, eager has torch.int64"),
        (lambda x, y, results: [].pop(), "raises IndexError"),
    ],
    ids=["value", "alias", "argument", "index", "dtype", "exception"],
)
def test_what_differs_is_named(monkeypatch, change, text):
    wrong(monkeypatch, change)
    steps = []
    monkeypatch.setattr(accuracy, "watchers", [lambda step, case, what: steps.append((step, what))])
    compiled = firebrick.compile(write_and_view, options=OPTIONS)
    with pytest.raises((VerificationError, IndexError)):
        compiled(torch.ones(1), torch.rand(2, 1))
    assert [step for step, _ in steps[:2]] == ["compile", "run"]
    assert steps[2][0] in ("differs", "raises") and re.search(text, steps[2][1])


@pytest.mark.compiler
def test_the_warning_names_the_graph_and_the_line(monkeypatch):
    wrong(monkeypatch, lambda x, y, results: (results[0], results[1] + 1, results[2]))
    compiled = firebrick.compile(write_and_view, options={**OPTIONS, "strict": False})
    with pytest.warns(FirebrickWarning, match=r"(?s)result 1.*test_accuracy\.py:\d+:\d+ in write_and_view"):
        compiled(torch.ones(4), torch.rand(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is told once a graph
        compiled(torch.ones(4), torch.rand(2, 2))
    assert firebrick.stats()["counts"]["graphs that differ from eager"] == 2


@pytest.mark.compiler
def test_a_wrong_gradient_is_named_although_the_forward_is_right(monkeypatch):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * 1.01

    wrong(monkeypatch, lambda x, results: tuple(Doubled.apply(r) for r in results))
    compiled = firebrick.compile(lambda x: x.sin() * x, options=OPTIONS)
    with pytest.raises(VerificationError, match="the gradient of argument 0 is off by 1.0e-02"):
        compiled(torch.rand(5, requires_grad=True))


@pytest.mark.compiler
def test_rounding_that_float64_excuses_is_no_difference(monkeypatch):
    """Sums that cancel are far from eager's, and as near to float64."""

    def cancelling(x):
        return (x + 1e6).sum() - x.sum() - 1e6 * x.numel()

    wrong(monkeypatch, lambda x, results: (cancelling(x.flip(0)),))
    compiled = firebrick.compile(cancelling, options=OPTIONS)
    compiled(torch.rand(1001, generator=torch.Generator().manual_seed(0)))


def test_guards_that_are_too_weak_are_named(monkeypatch):
    put = Guards.put
    monkeypatch.setattr(Guards, "put", lambda self, key, guard: guard.kind == "EQUALS" or put(self, key, guard))
    times = {"of": 3}
    compiled = firebrick.compile(lambda x: x * times["of"], backend="eager", options=None)
    monkeypatch.setenv("FIREBRICK_CHECK", "guards")
    checked = firebrick.compile(lambda x: x * times["of"], backend="eager")
    x = torch.ones(2)
    compiled(x), checked(x)
    times["of"] = 4
    assert compiled(x).tolist() == [3, 3], "the guard is planted"
    with pytest.warns(
        FirebrickWarning, match=r"(?s)hold of a call that is captured otherwise.*, 3\).*test_accuracy\.py"
    ):
        assert checked(x).tolist() == [4, 4]
