"""`min` and `max` of tensors of one element, by Python's comparisons, and functions of floats that data decide."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from compiling import Compiled, assert_same, outcome

import firebrick

NAN, INF = float("nan"), float("inf")
PAIRS = [(3.0, 2.0), (2.0, 3.0), (2.0, 2.0), (NAN, 1.0), (1.0, NAN), (0.0, -0.0), (-0.0, 0.0), (INF, -INF)]


def smaller(a, b):
    return min(a, b) * 2


def larger(a, b):
    return max(a, b) * 2 + a


def of_three(a, b):
    return max([a, b, a + b]), min(a, b, b - 1), [max((a, b))]


def of_rows(a, b):
    return max(torch.stack([a, b, a * b])) + 1, min(torch.stack([a, b]))


def nested(a, b):
    best = {"largest": max(a, b)}
    best["smallest"] = min(best["largest"], b - 1)
    return best


def in_place(a, b):
    a, b = a.clone(), b.clone()
    best = max(a, b)
    best.add_(1)
    return a, b, best


def written_later(a, b):
    a = a.clone()
    best = max(a, b)
    a.add_(10)
    return best * 2


def viewed(a, b):
    return min(a, b).view(1), a + 1


def viewed_within(a, b):
    best = min(a, b)
    return best.view(1) * 2 + best.unsqueeze(0)


def as_number(a, b):
    return torch.ones(2) * max(a, b).item()


def metadata(a, b):
    best = max(a, b)
    return torch.where(best > 0, best, a - b), best.shape, best.dtype, best.requires_grad


@pytest.mark.parametrize(
    "function",
    [
        smaller, larger, of_three, of_rows, nested, in_place, written_later, viewed, viewed_within, as_number, metadata,
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
def test_like_plain(function, backend):
    compiled = firebrick.compile(function, fullgraph=True, backend=backend)
    for values in PAIRS:
        results = []
        for run in (function, compiled):
            args = [torch.tensor(value) for value in values]
            results.append((str(outcome(run, args)), str(args)))  # with the sign of 0
        assert results[1] == results[0]


def the_larger(a, b):
    return max(a, 0), [min(0.5, a)], max(a, 2) + b


def in_arithmetic(a, b):
    ones = torch.ones(3)
    return ones / max(a, 1), max(0.1, a) * ones, (1 - max(a, 0.5) * 2) / ones, ones - min(a, 3.0)


def in_comparisons(a, b):
    ones = torch.ones(3)
    return max(a, 1) < ones, ones >= max(a, 1), max(a, 1) == 1


def into_another(a, b):
    b = b * torch.ones(3)
    b /= max(a, 2)
    return b, b.double() * max(a, 0.1), b.double() * max(a, 2)


def then_written_to(a, b):
    best = max(a, 2)
    a.add_(5)
    return best, best * b


def counted(a, b):
    return (a * b).sum() / max((a > b).sum(), 1), max((a < b).sum(), 1) * torch.ones(3)


@pytest.mark.parametrize(
    "function", [the_larger, in_arithmetic, in_comparisons, into_another, then_written_to, counted]
)
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
def test_a_tensor_or_a_number(function, backend):
    compiled = firebrick.compile(function, fullgraph=True, backend=backend)
    for values in PAIRS:
        results = []
        for run in (function, compiled):
            args = [torch.tensor(value) for value in values]
            results.append((str(outcome(run, args)), str(args)))
        assert results[1] == results[0]


def test_gradients_beside_a_count():
    def f(x, mask):
        return (x.sin() * mask).sum() / max(mask.sum(), 1)

    compiled = firebrick.compile(f, fullgraph=True)
    for mask in (torch.tensor([1, 0, 1]), torch.zeros(3, dtype=torch.int64)):
        grads = []
        for run in (f, compiled):
            x = torch.ones(3, requires_grad=True)
            run(x, mask).backward()
            grads.append(x.grad)
        assert_same(grads[1], grads[0])


def test_the_object_that_it_is():
    def f(a, b):
        best = max(a, b)
        return best, best * 2, [best], min(a + 1, b)

    compiled = Compiled(f, fullgraph=True)
    for values in PAIRS:
        a, b = (torch.tensor(value) for value in values)
        best, _, (again,), least = compiled(a, b)
        assert best is max(a, b)
        assert again is best
        assert (least is b) is (min(a + 1, b) is b)
    assert len(compiled.graphs) == 1


def is_asked(a, b):
    return a * 2 if min(a, b) is a else b * 3


def with_key(a, b):
    return min(a, b, key=lambda t: -t)


def in_place_of_either(a, b):
    best = max(a, 0.5)
    best += b
    return best


def text_of_either(a, b):
    return f"{max(a, 0.5)}"


def called_with_either(a, b):
    return torch.mul(b, max(a, 0.5))


def beside_a_tensor_of_another_dtype(a, b):
    return max(a, 0.1) * b.half()


def either_is_asked(a, b):
    return a * 2 if max(a, 0.5) is a else b * 3


def unlike(a, b):
    return max(a, b.double()) * 2


_BREAKING = [
    *(is_asked, with_key, unlike, in_place_of_either, text_of_either, called_with_either),
    *(beside_a_tensor_of_another_dtype, either_is_asked),
]


@pytest.mark.parametrize("function", _BREAKING)
def test_breaks(function):
    compiled = Compiled(function)
    for values in PAIRS:
        results = [str(outcome(run, [torch.tensor(value) for value in values])) for run in (compiled, function)]
        assert results[0] == results[1]
    assert "data-dependent-branch" in compiled.breaks


def test_gradients_go_to_the_one_alone():
    def f(a, b):
        return max(a * 2, b * 3)

    compiled = Compiled(f)
    for values in PAIRS[:3]:
        grads = []
        for run in (f, compiled):
            a, b = (torch.tensor(value, requires_grad=True) for value in values)
            run(a, b).backward()
            grads.append([a.grad, b.grad])
        assert_same(grads[1], grads[0])


# -- functions of floats --------------------------------------------------------------------------

VALUES = (3.0, 2.0, 0.3, -1.5, 0.0, -0.0, 1e200, NAN, INF)
FUNCTIONS = {
    "square": lambda n: n**2,
    "root": lambda n: n**0.5,
    "parts": lambda n: (n // 2, n % 3, divmod(n, 0.7)),
    "power": lambda n: 2**n,
    "inverse": lambda n: 1 // n,
    "of_two": lambda n: (n ** (n + 1), pow(n, 3)),
    "exp": lambda n: math.exp(n),
    "logs": lambda n: (math.log(n), math.log(n, 2), math.sqrt(n), math.atan2(1, n)),
    "operators": lambda n: (operator.pow(n, 3), math.pow(n, 2), math.fabs(n), math.hypot(n, 4)),
    "floor": lambda n: (math.floor(n), math.ceil(n), math.trunc(n)),
    "tests": lambda n: (math.isnan(n), math.isinf(n)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("backend", ["eager", "firebrick"])
def test_functions_of_floats(name, backend):
    def f(x, ones):
        made = FUNCTIONS[name](x.item())
        first = made[0] if isinstance(made, tuple) else made
        first = first[0] if isinstance(first, tuple) else first
        return ones * first, made

    whole = backend == "firebrick" or name != "floor"
    compiled = firebrick.compile(f, fullgraph=whole, backend=backend)
    ones = torch.ones(3)
    for value in VALUES:
        x = torch.tensor(value, dtype=torch.float64)
        assert str(outcome(compiled, (x, ones))) == str(outcome(f, (x, ones)))


def test_in_place_and_in_training():
    def f(x, w):
        n = x.sum().item()
        n **= 2
        n //= 3
        return (w * n).sum()

    compiled = firebrick.compile(f, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4)
        grads = []
        for run in (f, compiled):
            w = torch.ones(3, requires_grad=True)
            run(x, w).backward()
            grads.append(w.grad)
        assert_same(*grads)


def test_one_graph():
    compiled = Compiled(lambda x: x * x.sum().item() ** 2, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4)
        assert_same(compiled(x), x * x.sum().item() ** 2)
    assert len(compiled.graphs) == 1
