"""Integers that differ from call to call become symbols at their second value, unless they must be known."""

import pytest
import torch
from test_varying_sizes import compiles
from torch import nn

import firebrick

X = torch.randn(6, 8)

FUNCTIONS = {
    "factor": lambda x, n: x * n,
    "reflected": lambda x, n: n - x,
    "quotient": lambda x, n: x / n + n / x.abs().add(1),
    "of integers": lambda x, n: x.long() * n + n,
    "comparison": lambda x, n: (x > n, x.long() == n),
    "sum of numbers": lambda x, n: x * (n * 2 + 3) - (n - 40) // 3,
    "slice": lambda x, n: x[:, : n % 5 + 1] * 2,
    "arange": lambda x, n: torch.arange(n) + x[0, 0].long(),
    "shape": lambda x, n: torch.zeros(n, 3) + x[0, :3],
    "expand": lambda x, n: x[None].expand(n, -1, -1).sum(0),
    "result": lambda x, n: (x + 1, n, n + 1, {"n": n * 2}),
    "text": lambda x, n: (x + 1, n + 0),
    "minimum": lambda x, n: x[: min(n, 4)] + max(n, 3),
    "branch": lambda x, n: x + 1 if n > 1 else x - 1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument(name):
    values = [3, 4, 7, 9, 20, 31, 2, 1000]
    if name == "minimum":  # either is smaller
        values = [3, 2, 3, 2]
    assert compiles(FUNCTIONS[name], [(X, n) for n in values]) <= (3 if name == "slice" else 2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_zero_one_negative_and_large_ones_are_right_too(name):
    values = [3, 4, 0, 1, -1, -7, 5, 1 << 20]
    if name not in ("arange", "shape", "expand", "slice"):
        values += [1 << 31, 1 << 40, True]
    calls = []
    for n in values:
        try:
            FUNCTIONS[name](X, n)
            calls.append((X, n))
        except RuntimeError:
            pass  # eager refuses these
    compiles(FUNCTIONS[name], calls, recompile_limit=30)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 2
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


def test_an_attribute_that_counts():
    model = Counter().eval()
    compiled, before = firebrick.compile(model), firebrick.graphs_compiled()
    with torch.no_grad():
        for n in range(3, 12):
            torch.testing.assert_close(compiled(X), model.linear(X) * n)
            assert model.calls == n and type(model.calls) is int
    assert firebrick.graphs_compiled() - before == 2


def test_equal_layers_that_count_apart():
    model = nn.Sequential(*(Counter() for _ in range(4))).eval()
    for i, layer in enumerate(model):
        layer.calls = 2 + i
    compiled, before = firebrick.compile(model), firebrick.graphs_compiled()
    with torch.no_grad():
        for n in range(3, 9):
            wanted = X
            for i, layer in enumerate(model):
                wanted = layer.linear(wanted) * (n + i)
            torch.testing.assert_close(compiled(X), wanted, rtol=1e-4, atol=1e-3)
            assert [layer.calls for layer in model] == [n + i for i in range(4)]
    assert firebrick.graphs_compiled() - before <= 3


def test_what_must_be_known_is_compiled_for_each_and_sizes_stay_symbols():
    def function(x, n):
        for _ in range(n):
            x = x * 2
        return x

    calls = [(torch.randn(b, 4), n) for b, n in ((3, 2), (4, 3), (5, 3), (6, 3), (7, 3), (8, 3))]
    assert compiles(function, calls) <= 4


def test_an_integer_that_is_written_as_text():
    def function(x, n):
        return x + 1, f"step {n}"

    compiled = firebrick.compile(function)
    for n in (3, 4, 5):
        found, text = compiled(X, n)
        assert torch.equal(found, X + 1) and text == f"step {n}"


def test_a_position_in_a_cache():
    cache = torch.zeros(40, 4)

    def step(x, at):
        cache[at] = x
        return cache[: at + 1].softmax(0).sum(0)

    compiled, before = firebrick.compile(step), firebrick.graphs_compiled()
    wanted = torch.zeros(40, 4)
    for at in range(2, 20):
        x = torch.randn(4)
        wanted[at] = x
        torch.testing.assert_close(compiled(x, at), wanted[: at + 1].softmax(0).sum(0))
        assert torch.equal(cache, wanted)
    assert firebrick.graphs_compiled() - before <= 3
