"""Attributes of dicts that have some, of thread locals, and parameters and tensors that are given other memory inside."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch
from compiling import assert_same, check
from torch import nn

import firebrick

LAYERS = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
HELD: Any = OrderedDict(a=1)
LOCAL = threading.local()


def new_dict(x: Any) -> Any:
    made: Any = OrderedDict()
    made.meta, made["a"] = {"version": 1}, x
    made.meta["version"] += 1
    counted: Any = Counter("aab")
    counted.note = "text"
    return made["a"] + made.meta["version"], made, made.meta, counted, counted.note, hasattr(made, "other")


def state_of_a_module(x: Any) -> Any:
    state: Any = LAYERS.state_dict()
    return x @ state["0.weight"], state, state._metadata


def parameter_of_an_argument(x: Any) -> Any:
    made = nn.Parameter(x)
    return (made * x).sum(), made.shape


def views_of_itself(x: Any) -> Any:
    y = x.clone()
    y[None] = y
    y.unsqueeze(0)[:] = y
    return y


def other_memory(x: Any) -> Any:
    y, z = torch.empty(3), x.clone()
    y.set_(z)
    z += 1
    return y + 1, z


@pytest.mark.parametrize(
    "function", [new_dict, state_of_a_module, parameter_of_an_argument, views_of_itself, other_memory]
)
def test_one_graph(function: Any) -> None:
    check(function, torch.tensor([1.0, -2.0, 0.5]))


def dict_from_outside(x: Any) -> Any:
    HELD.kept = x * 2
    HELD.count = getattr(HELD, "count", 0) + 1
    return HELD.kept + HELD.count, hasattr(HELD, "missing")


def thread_local(x: Any) -> Any:
    if hasattr(LOCAL, "count"):
        LOCAL.count += 1
    else:
        LOCAL.count = 1
    LOCAL.gone = x
    y = x * LOCAL.count + LOCAL.gone
    del LOCAL.gone
    return y, getattr(LOCAL, "gone", None)


@pytest.mark.parametrize("function", [dict_from_outside, thread_local])
def test_effects(function: Any) -> None:
    compiled, x, results = firebrick.compile(function, fullgraph=True), torch.tensor([1.0, -2.0, 0.5]), []
    for call in (function, compiled):
        vars(HELD).clear()
        vars(LOCAL).clear()
        results.append([(call(x), dict(vars(HELD)), dict(vars(LOCAL))) for _ in range(4)])
    assert_same(results[1], results[0])


def test_a_thread_has_its_own() -> None:
    vars(LOCAL).clear()
    compiled, x = firebrick.compile(thread_local, fullgraph=True), torch.ones(3)
    compiled(x), compiled(x)
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.extend((compiled(x), LOCAL.count)))
    thread.start()
    thread.join()
    assert seen[1] == 1
    assert LOCAL.count == 2


def test_gradients_of_a_parameter_of_an_argument() -> None:
    def f(x: Any) -> Any:
        made = nn.Parameter(x)
        return (made * made).sum(), made

    x = torch.tensor([1.0, 2.0])
    loss, made = firebrick.compile(f, fullgraph=True)(x)
    loss.backward()
    assert torch.equal(made.grad, 2 * x)
    assert made.data_ptr() == x.data_ptr()
    assert type(made) is nn.Parameter


def test_a_parameter_of_what_is_written_to() -> None:
    def f(x: Any) -> Any:
        made = nn.Parameter(x)
        x += 1
        return (made * 2).sum()

    check(f, torch.tensor([1.0, 2.0]), graphs=None, breaks=None)
