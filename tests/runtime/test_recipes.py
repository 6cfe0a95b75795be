"""Recipes: how derived constants are computed."""

import importlib
import weakref

import pytest
import torch

load = importlib.import_module("firebrick.runtime.load")  # the package has a function of this name


def slot(kind):
    return [kind, "float32", [4], [1], 0, "cpu"]


def call(name, slot_in, slot_out):
    return ["call", f"aten::{name}", [["t", slot_in]], ["Tensor"], 1, [], [slot_out], False, True]


@pytest.fixture
def refresh(monkeypatch):
    """Runs two steps from a constant to each of two derived ones; tells what is alive when each step begins."""
    made, alive = [], []

    def step(x):
        alive.append([r() is not None for r in made])
        result = x + 1
        made.append(weakref.ref(result))
        return result

    monkeypatch.setattr(load, "resolve", lambda kind, name: step)
    kinds = ["const", "scratch", "derived", "scratch", "derived"]
    table = {
        "slots": [slot(kind) for kind in kinds],
        "views": [[i, [4], [1], 0, None] for i in range(5)],
        "recipe": [call("a", 0, 1), call("b", 1, 2), call("c", 0, 3), call("d", 3, 4)],
    }
    return load._Refresh(table, {}), alive


def test_a_step_between_is_dropped_when_nothing_needs_it(refresh):
    run, alive = refresh
    results = run([torch.zeros(4)])
    assert [r.tolist() for r in results] == [[2] * 4, [2] * 4]
    assert alive == [[], [True], [False, True], [False, True, True]]


def test_it_runs_again_from_other_constants(refresh):
    run, _ = refresh
    run([torch.zeros(4)])
    assert [r.tolist() for r in run([torch.ones(4)])] == [[3] * 4, [3] * 4]
