"""Modes with a `__torch_function__` that are entered in captured code see each call of torch as in plain Python."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compiling import assert_same, check
from torch.overrides import TorchFunctionMode

import firebrick


class Log(TorchFunctionMode):
    """Keeps names, kinds, numbers of arguments and keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_function__(self, *given: Any) -> Any:
        func, types, args, *rest = given
        self.calls.append((func.__name__, types, len(args), [sorted(names) for names in rest if names]))
        return func(*args, **(rest[0] if rest else {}))


class Replace(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.add:
            return func(*args) * 10
        return (torch.cos if func is torch.sin else func)(*args, **(kwargs or {}))


class Double(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if isinstance(result, torch.Tensor) else result


def operators(x: Any) -> Any:
    log = Log()
    with log:
        y = x + 1
        parts = [2 - y, 2**y, -y, 1 < y, y == 2, y @ y, y[0], y[1:]]
        y += 1
        y[0] = 3
        rows = [row + 1 for row in y]
        size = len(y), y.shape, y.dtype, y.nelement(), y.size(0), y.requires_grad, 1.0 if hasattr(y, "nope") else 2.0
    return parts, y, rows, size, log.calls


def functions(x: Any) -> Any:
    log = Log()
    with log:
        y = torch.add(x, x, alpha=2)
        y = torch.nn.functional.softmax(y, dim=0) + torch.nn.functional.relu(y)
        y = torch.sum(y, 0, keepdim=True).to(torch.float64).reshape(1, 1).norm()
        made = torch.zeros(2), torch.tensor(2.0), torch.cat([x, x]), torch.einsum("i,i->", x, x), torch.sin(input=x)
    return y, made, log.calls


def gradient_modes(x: Any) -> Any:
    log = Log()
    with log:
        with torch.no_grad():
            y = x * 2
        torch.set_grad_enabled(True)
    return y, log.calls, torch.is_grad_enabled()


def nested(x: Any) -> Any:
    inner, outer = Log(), Log()
    with outer:
        y = x + 1
        with inner, Double():
            y = torch.sin(y)
        y = y * 2
    return y + 1, inner.calls, outer.calls


def replacing(x: Any) -> Any:
    with Replace():
        y = torch.sin(x) + 1
        with Double():
            y = torch.sin(y) + 1
    return y, torch.sin(x) + 1


def exceptions(x: Any) -> Any:
    log = Log()
    try:
        with log:
            y = x + 1
            raise ValueError
    except ValueError:
        return y + 1, log.calls


SHARED = Log()
LAYERS = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3), torch.nn.ReLU())


def made_elsewhere(x: Any) -> Any:
    with SHARED:
        y = LAYERS(x)
    return y


@pytest.mark.parametrize(
    "function", [operators, functions, gradient_modes, nested, replacing, exceptions, made_elsewhere]
)
def test_one_graph(function: Any) -> None:
    check(function, torch.tensor([1.0, -2.0, 0.5]))


def test_effects_on_a_mode_from_outside() -> None:
    logs = []
    for call in (made_elsewhere, firebrick.compile(made_elsewhere, fullgraph=True)):
        SHARED.calls.clear()
        call(torch.ones(3))
        logs.append(list(SHARED.calls))
    assert logs[0] == logs[1] != []


def test_active_around_the_call() -> None:
    compiled = firebrick.compile(replacing, fullgraph=True)
    x = torch.tensor([1.0, -2.0, 0.5])
    for _ in range(2):
        outer = Log()
        with outer:
            got = compiled(x)
        seen = Log()
        with seen:
            want = replacing(x)
        assert_same(got, want)
        assert outer.calls == seen.calls
        assert_same(compiled(x), replacing(x))


def broken_inside(x: Any) -> Any:
    log = Log()
    with log:
        y = x + 1
        firebrick.graph_break()
        y = torch.sin(y)
    return y * 2, log.calls


def entered_for_good(x: Any) -> Any:
    log = Log()
    log.__enter__()
    y = x + 1
    firebrick.graph_break()
    y = y * 3
    log.__exit__(None, None, None)
    return y, log.calls


@pytest.mark.parametrize("function", [broken_inside, entered_for_good])
def test_a_break_inside(function: Any) -> None:
    check(function, torch.tensor([1.0, -2.0, 0.5]), graphs=None, breaks=None)
    assert torch._C._len_torch_function_stack() == 0


class Refuses(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def refused(x: Any) -> Any:
    with Refuses():
        return x + 1


def with_arrays(x: Any) -> Any:
    log = Log()
    with log:
        y = x.numpy() + 1
    return y, log.calls


def with_devices(x: Any) -> Any:
    log = Log()
    with log, torch.device("cpu"):
        y = torch.ones(3) + x
    return y, log.calls


def smallest(x: Any) -> Any:
    log = Log()
    with log:
        y = min(x[0], x[1])
    return y, log.calls


@pytest.mark.parametrize("function", [refused, with_arrays, with_devices, smallest])
def test_what_is_not_captured_is_right(function: Any) -> None:
    check(function, torch.tensor([1.0, -2.0, 0.5]), graphs=None, breaks=None)
