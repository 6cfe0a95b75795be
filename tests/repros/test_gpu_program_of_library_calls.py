"""A program for a GPU without a kernel of its own called into a driver that nobody had opened: a crash."""

import importlib
from contextlib import suppress

from firebrick.artifact import Artifact


def test_the_driver_is_opened_before_a_program_that_only_calls_torch(monkeypatch):
    opened = []
    load = importlib.import_module("firebrick.runtime.load")
    monkeypatch.setattr(load, "_open_driver", lambda: opened.append(True))
    slots = [["input", "f32", [4], [1], 0, "cuda:0"]]
    table = {"slots": slots, "inputs": ["x"], "consts": [], "steps": [], "mutated": [], "outputs": []}
    with suppress(Exception):  # this torch may know no GPU
        load.load(Artifact("calls", table), {})
    assert opened
