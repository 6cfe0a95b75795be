"""Floats, integers and texts that Python computes of sizes, and of floats that vary, are one compile for all of them."""

import math

import pytest
import torch
from test_varying_sizes import compiles
from torch import nn

import firebrick

OF_SIZES = {
    "half": lambda x: x * (x.shape[0] / 2) + x.shape[0] * 0.3,
    "inverse": lambda x: x * (1 / x.shape[0]) - 1.0 / x.shape[0],
    "root": lambda x: x / math.sqrt(x.shape[0]) + x * x.shape[0] ** -0.5,
    "square": lambda x: x * x.shape[0] ** 2 + math.prod(x.shape),
    "logarithm": lambda x: x * math.log(x.shape[0]) + math.cos(x.shape[0]),
    "part": lambda x: x[: int(x.shape[0] * 0.3)].sum(0) + x[: math.ceil(x.shape[0] / 2)].sum(0),
    "rounded": lambda x: x[: round(x.shape[0] * 0.7)] * 2,
    "comparison": lambda x: x + 1 if x.shape[0] > 2.5 else x - 1,
    "as float": lambda x: x * float(x.shape[0]) + sum([x.shape[0], 1.5]),
    "as tensor": lambda x: x * torch.tensor(x.shape[0]) + torch.tensor([x.shape[0], 2, 3]),
    "result": lambda x: (x + 1, x.shape[0] / 2, int(x.shape[0] / 2), x.shape[0] ** 0.5),
    "remainder": lambda x: x + divmod(x.shape[0], 3)[1] + divmod(x.shape[0], 3)[0],
    "two sizes": lambda x: x * (x.shape[0] / x.shape[1]),
}


@pytest.mark.parametrize("name", OF_SIZES)
def test_a_number_of_sizes(name):
    assert compiles(OF_SIZES[name], [(torch.randn(n, 3),) for n in (9, 7, 8, 5, 11, 12, 30)]) == 2


def test_zero_and_one_are_right_too():
    for function in OF_SIZES.values():
        calls = []
        for n in (9, 7, 1, 0):
            try:
                function(torch.randn(n, 3))
                calls.append((torch.randn(n, 3),))
            except (ZeroDivisionError, ValueError):
                pass
        compiles(function, calls, recompile_limit=20)


def test_a_division_by_nothing_is_pythons_error():
    compiled = firebrick.compile(lambda x: x.sum() / (x.shape[0] - 4) + 1 / (x.shape[0] - 4))
    for n in (9, 8, 7, 2):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x), x.sum() / (n - 4) + 1 / (n - 4))
    with pytest.raises(ZeroDivisionError):
        compiled(torch.randn(4))


OF_FLOATS = {
    "arithmetic": (lambda x, a: x * (a * 2 + 1) - a / 3 + (1 - a), 2),
    "functions": (lambda x, a: x * math.cos(a) + math.tanh(a) + abs(-a), 2),
    "root": (lambda x, a: x * math.sqrt(a) + a**2 + a // 0.3 + 1 / a, 2),
    "branch": (lambda x, a: x * a if a > 0.15 else x + a, 3),
    "smaller": (lambda x, a: x * min(a, 0.25), 3),
    "text": (lambda x, a: (x * a, f"a {a:.3f}", str(a), "%s" % a), 2),
    "result": (lambda x, a: (x * a, a, a * 2, int(a * 100)), 2),
    "truth": (lambda x, a: x * a if a else x, 2),
    "known": (lambda x, a: torch.nn.functional.leaky_relu(x, a), 6),
}


@pytest.mark.parametrize("name", OF_FLOATS)
def test_a_number_of_floats(name):
    function, most = OF_FLOATS[name]
    compiled, before = firebrick.compile(function), firebrick.graphs_compiled()
    for a in (0.1, 0.2, 0.3, 0.12, 0.4, 1.5):
        x = torch.randn(4)
        found, wanted = compiled(x, a), function(x, a)
        if isinstance(wanted, tuple):
            assert found[1:] == wanted[1:] and list(map(type, found)) == list(map(type, wanted))
            found, wanted = found[0], wanted[0]
        torch.testing.assert_close(found, wanted)
    assert firebrick.graphs_compiled() - before <= most


def test_texts_and_prints_of_sizes(capsys):
    def function(x):
        print("rows", x.shape[0], x.shape)
        return x + 1, f"{x.shape[0]} of {tuple(x.shape)} {x.shape[0]:>4}", "n=%d" % x.shape[0], "n=" + str(x.shape[0])

    compiled, before = firebrick.compile(function), firebrick.graphs_compiled()
    for n in (3, 4, 5, 6):
        x = torch.randn(n, 3)
        found = compiled(x)
        printed = capsys.readouterr().out
        assert found[1:] == function(x)[1:] and printed == capsys.readouterr().out
    assert firebrick.graphs_compiled() - before == 2


def test_a_text_that_must_be_known_is_compiled_for_each():
    tables = {f"size {n}": torch.randn(3) for n in range(10)}

    def function(x):
        return x + tables[f"size {x.shape[0]}"]

    assert compiles(function, [(torch.randn(n, 3),) for n in (3, 4, 5)]) == 3


SCHEDULERS = {
    "cosine": (lambda all, optimizer: all.CosineAnnealingLR(optimizer, 20), 2),
    "step": (lambda all, optimizer: all.StepLR(optimizer, 3, 0.5), 3),
    "exponential": (lambda all, optimizer: all.ExponentialLR(optimizer, 0.9), 2),
    "powers": (lambda all, optimizer: all.LambdaLR(optimizer, lambda epoch: 0.95**epoch), 2),
    "inverse": (lambda all, optimizer: all.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch)), 2),
    "warmup": (lambda all, optimizer: all.LambdaLR(optimizer, lambda epoch: min(1.0, (epoch + 1) / 5)), 3),
    "milestones": (lambda all, optimizer: all.MultiStepLR(optimizer, [3, 6], 0.1), 4),
    "polynomial": (lambda all, optimizer: all.PolynomialLR(optimizer, 20), 2),
}
"""Makes a scheduler; compiles of what is behind the backward: for the first call, and for each outcome of an `if`."""


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_inside_of_a_step(kind):
    make, most = SCHEDULERS[kind]

    def parts():
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return model, optimizer, make(torch.optim.lr_scheduler, optimizer)

    def step_of(model, optimizer, scheduler):
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss

        return step

    mine, theirs = parts(), parts()
    compiled, eager = firebrick.compile(step_of(*mine)), step_of(*theirs)
    before = firebrick.graphs_compiled()
    for _ in range(12):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), eager(x))
        torch.testing.assert_close(mine[0].weight, theirs[0].weight, rtol=1e-4, atol=1e-5)
        assert mine[1].param_groups[0]["lr"] == theirs[1].param_groups[0]["lr"]
    assert firebrick.graphs_compiled() - before <= 2 + most  # two of what is before: without and with gradients


def test_powers_of_a_number_are_plain_pythons():
    def function(x, n):
        return x * 0.5**n, 0.5**n, 1.0**n, 1e-20**n, 3 ** min(n, 9)

    compiled = firebrick.compile(function)
    for n in (1, 2, 3, 2000, 4, 1_000_000):
        if n < 5:
            torch.testing.assert_close(compiled(torch.ones(3), n)[0], torch.ones(3) * 0.5**n)
        assert (x := compiled(torch.ones(3), n))[1:] == function(torch.ones(3), n)[1:] and type(x[4]) is int

    raising = firebrick.compile(lambda x, n: x * 1.5**n)
    for n in (3, 4, 5):
        torch.testing.assert_close(raising(torch.ones(3), n), torch.ones(3) * 1.5**n)
    with pytest.raises(OverflowError):
        raising(torch.ones(3), 10_000)


def test_a_size_as_a_key_is_asked_for_each_of_few():
    names = {3: 1.0, 6: 2.0}

    def function(x, n):
        return x * names[n] if n in names else x - names.get(n, n)

    calls = [(torch.randn(4), n) for n in (4, 5, 7, 3, 6, 8, 9, 100, 3)]
    assert compiles(function, calls) == 4


def test_a_counter_is_a_symbol_from_1_on():
    class Counter:
        calls = 0

        def __init__(self):
            self.calls = 0

        def __call__(self, x):
            self.calls += 1
            return x * self.calls + (10 if self.calls == 1 else 0)

    mine, theirs = Counter(), Counter()
    compiled, before = firebrick.compile(mine.__call__), firebrick.graphs_compiled()
    for _ in range(6):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), theirs(x))
    assert mine.calls == 6 and firebrick.graphs_compiled() - before == 2


Y, Z = torch.randn(3, 4), torch.rand(3, 4) + 1
SCALED = {
    "add": lambda x, a: torch.add(x, Y, alpha=a),
    "add in place": lambda x, a: x.clone().add_(Y[0], alpha=-a),
    "sub": lambda x, a: x.sub(Y, alpha=a * 2),
    "lerp": lambda x, a: torch.lerp(x, Y, a) + x.lerp(Y, weight=a),
    "slopes": lambda x, a: nn.functional.leaky_relu(x, a) + nn.functional.leaky_relu(x, negative_slope=a),
    "addcmul": lambda x, a: x.clone().addcmul_(Y, Z, value=a),
    "addcdiv": lambda x, a: torch.addcdiv(x, Y, Z, value=a),
    "doubles": lambda x, a: torch.add(x.double(), Y.double(), alpha=a),
}


@pytest.mark.parametrize("backend", ["eager", "firebrick"])
@pytest.mark.parametrize("name", SCALED)
def test_a_float_that_scales_a_tensor(name, backend):
    compiled, before = firebrick.compile(SCALED[name], backend=backend), firebrick.stats()["counts"].get("graphs", 0)
    for a in (0.5, 0.25, -1.75, 0.0, math.inf, 1e-3):
        x = torch.randn(3, 4, requires_grad=True)
        result, wanted = compiled(x, a), SCALED[name](x, a)
        exact = {"rtol": 0, "atol": 0} if backend == "eager" else {}
        torch.testing.assert_close(result, wanted, equal_nan=True, **exact)
        if math.isfinite(a):
            mine, theirs = (torch.autograd.grad(y.sum(), x)[0] for y in (result, wanted))
            torch.testing.assert_close(mine, theirs, **exact)
    assert firebrick.stats()["counts"]["graphs"] - before == 2


def test_what_scales_other_dtypes_is_a_number():
    def function(x, y, a):
        return torch.add(x, y, alpha=a)

    for x, y in ((torch.randn(3).half(), torch.randn(3).half()), (torch.randn(3).double(), torch.randn(3))):
        compiled = firebrick.compile(function)
        for a in (0.5, 1.5, -2.5):
            torch.testing.assert_close(compiled(x, y, a), function(x, y, a))
