"""Floats and truths that are read from tensors stay in the graph: one graph, and Python's own numbers come out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import firebrick
from firebrick.report import recorder


def graphs(gm: Any, _: Any) -> Any:
    return gm.forward


def accumulated(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, float]:
    total = 0.0
    for i in range(3):
        total += (x[i] * t).item()
    return x + total, total / 3


def written_later(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, float, torch.Tensor]:
    y = (t * 3).double()
    number = y.item()
    y.add_(1)
    return x * number, number, y


def said(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, str, str]:
    text = f"loss={t.item():.3f}|" + str(t.item())
    return x + 1, text, "%"


def both(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, bool, bool]:
    high, low = t.item() > 0.5, bool(t < -0.5)
    return x + 1, high | low, not (high & low)


def held_by_an_object(x: torch.Tensor, t: torch.Tensor) -> Any:
    state: dict[str, Any] = {"loss": t.item()}
    state["best"] = max(state["loss"], 0.25)
    state["worst"] = min(state["loss"], 0.25)
    return state


FLOATS: dict[str, Any] = {
    "number": lambda x, t: (x * t.item() + 1, t.item()),
    "bytes": lambda x, t: (x.long() + int(t.item() * 3), int(t)),
    "halves": lambda x, t: (x.bfloat16() * t.item(), t.half().item()),
    "accumulated": accumulated,
    "written later": written_later,
    "text": said,
    "comparisons": both,
    "object": held_by_an_object,
    "divided": lambda x, t: x / (t.item() - 7) + t.item() / (t.item() + 70),
    "list": lambda x, t: (x.tolist(), [n * 2 for n in (x * t).tolist()]),
    "rounded": lambda x, t: (round(t.item(), 2), round(t.item()), abs(t.item()), -t.item()),
    "tensor": lambda x, t: (torch.tensor(t.item()) + x, torch.full((2,), t.item()), x.double() * float(t)),
    "math": lambda x, t: (math.isnan(t.item()), math.sqrt(t.item() * t.item()), x * math.fabs(t.item())),
    "integer": lambda x, t: x * float(t.to(torch.int32)),
    "truth": lambda x, t: (x * (t > 0).item(), bool(t), not t.item()),
    "one element": lambda x, t: (x + t.reshape(1, 1).item(), float(t.reshape(1))),
    "none": lambda x, t: (t.item() is None, t.item() == "a", isinstance(t.item(), float), x + 1),
}
VALUES = (1.2345678, -0.5, 0.0, 2.5, 1e30, math.inf)


def calls(name: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    values = [v for v in VALUES if v < 100 or name not in ("bytes", "rounded", "integer")]
    return [(torch.arange(6.0) + 1, torch.tensor(v)) for v in values]


@pytest.mark.parametrize("name", FLOATS)
def test_one_graph_gives_pythons_numbers(name: str) -> None:
    function = FLOATS[name]
    compiled = firebrick.compile(function, fullgraph=True)
    before = recorder.counts["graphs"]
    for args in calls(name):
        plain, given = function(*args), compiled(*args)
        for one, other in zip(_leaves(given), _leaves(plain), strict=True):
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6, equal_nan=True)
            else:
                assert (type(one), repr(one)) == (type(other), repr(other))
    assert recorder.counts["graphs"] == before + 1


def _leaves(value: Any) -> Any:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def test_a_number_needs_no_gradient() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x * x.sum().item()).sum()

    x, other = (torch.arange(4.0).requires_grad_() for _ in range(2))
    scaled(x).backward()  # type: ignore[no-untyped-call]
    firebrick.compile(scaled, fullgraph=True)(other).backward()
    torch.testing.assert_close(other.grad, x.grad)


def test_what_python_refuses_is_raised_as_in_python() -> None:
    whole = firebrick.compile(lambda x, t: x + int(t), fullgraph=True)
    whole(torch.ones(2), torch.tensor(3.7))
    with pytest.raises(ValueError, match="cannot convert float NaN to integer"):
        whole(torch.ones(2), torch.tensor(math.nan))
    inverse = firebrick.compile(lambda x, t: x * (1 / t.item()), fullgraph=True)
    inverse(torch.ones(2), torch.tensor(2.0))
    with pytest.raises(ZeroDivisionError):
        inverse(torch.ones(2), torch.tensor(0.0))


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (lambda x, t: x + 1 if t.item() > 0 else x - 1, "data-dependent-branch"),
        (lambda x, t: x * [1.0, 2.0][t.item() > 0], "data-dependent-value"),
    ],
)
def test_what_must_be_known_breaks_and_says_what_to_do(function: Any, kind: str) -> None:
    with pytest.raises(firebrick.errors.Unsupported, match=kind) as caught:
        firebrick.compile(function, fullgraph=True)(torch.ones(2), torch.tensor(2.5))
    assert "torch.where" in str(caught.value)
    compiled = firebrick.compile(function)
    for value in (2.5, -1.0, 0.0, 3.0):
        args = torch.ones(2), torch.tensor(value)
        torch.testing.assert_close(compiled(*args), function(*args))


def test_a_constant_that_was_written_to_is_read_anew() -> None:
    def constant(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        t = torch.tensor(3.0)
        t.add_(x.sum())
        return x * t.item(), t.item()

    compiled = firebrick.compile(constant, fullgraph=True, backend=graphs)
    for x in (torch.ones(3), torch.zeros(3)):
        assert compiled(x)[1] == constant(x)[1]


ASSERTED = """
def asserted(x, t):
    assert t.item() < 5, "too large"
    if torch.isnan(x).any():
        raise ValueError("not a number")
    if not (x >= 0).all():
        raise ValueError(f"negative: {x.min().item()}")
    return x * t.item()
"""  # pytest writes the assertions of this file anew


def test_what_is_asserted_of_data_is_looked_at_in_each_call() -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec(ASSERTED, scope)
    asserted = scope["asserted"]
    compiled = firebrick.compile(asserted, fullgraph=True)
    for args in [(torch.ones(3), torch.tensor(v)) for v in (2.0, 4.5, -1.0)]:
        torch.testing.assert_close(compiled(*args), asserted(*args))
    with pytest.raises(AssertionError, match="too large"):
        compiled(torch.ones(3), torch.tensor(5.5))
    with pytest.raises(ValueError, match="not a number"):
        compiled(torch.ones(3) * math.nan, torch.tensor(2.0))
    with pytest.raises(ValueError, match=r"negative: -1\.0"):
        compiled(-torch.ones(3), torch.tensor(2.0))
    torch.testing.assert_close(compiled(torch.ones(3), torch.tensor(1.0)), torch.ones(3))


INTEGERS: dict[str, Any] = {
    "mean": lambda x, n: (x * (n.item() / 3), n.item() / 7),
    "text": lambda x, n: (x + 1, f"{n.item():03d}", "{}-{:.1f}".format(n.item(), n.float().item()), "%d" % n.item()),
    "divmod": lambda x, n: (x + 1, divmod(n.item(), 3)),
    "comparison": lambda x, n: (x * (n.item() > 2), n.item() > 2, not n.item() > 2),
    "clamp": lambda x, n: (x.clamp(min=n.float().item()), torch.clamp(x, -1.0, n.float().item())),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_in_floats_and_texts(name: str) -> None:
    function = INTEGERS[name]
    compiled = firebrick.compile(function, fullgraph=True)
    for n in (3, 0, -4, 2, 1 << 40):
        plain, given = (f(torch.arange(5.0), torch.tensor(n)) for f in (function, compiled))
        for one, other in zip(_leaves(given), _leaves(plain), strict=True):
            assert torch.equal(one, other) if isinstance(other, torch.Tensor) else repr(one) == repr(other)


def test_a_number_is_said_when_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    def spoken(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        print("n is", n.item(), f"{n.item():>4}", x.sum().item())
        return x + 1

    firebrick.compile(spoken, fullgraph=True)(torch.ones(2), torch.tensor(7))
    assert capsys.readouterr().out == "n is 7    7 2.0\n"
