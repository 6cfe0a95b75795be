"""`TORCH_LOGS` shows our levels, and tools may listen to what happens."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch._logging

import firebrick
from firebrick.config import LEVELS, TORCH_LOGS, Config
from firebrick.extend import listening

PROGRAM = """
import torch, firebrick
f = firebrick.compile(lambda x: (x * 1.5).sin())
f(torch.ones(3)), f(torch.ones(4))
assert "torch._dynamo" not in __import__("sys").modules
"""


@pytest.mark.parametrize(
    ("logs", "shown", "hidden"),
    [
        ("recompiles", "x.shape[0] was 3, now 4", "capture"),
        ("graph_breaks,guards", "guards <lambda>", "recompile"),
        ("+dynamo", "capture <lambda>", "recompile"),
        ("output_code", "void", "capture"),
    ],
)
def test_a_program_shows_what_torch_logs_asks_for(logs: str, shown: str, hidden: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("TORCH_LOGS", logs)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert shown in done.stderr
    assert hidden not in done.stderr


def test_logs_that_a_program_sets_are_shown(caplog: Any) -> None:
    torch._logging.set_logs(recompiles=True)
    try:
        fn = firebrick.compile(lambda x: x + 1, backend="eager")
    finally:
        torch._logging.set_logs()
    with caplog.at_level(logging.WARNING, "firebrick"):
        for size in (3, 4):
            fn(torch.ones(size))
    assert [record.message for record in caplog.records if "recompile" in record.message]


def test_the_table_names_what_is_there() -> None:
    registry = torch._logging._internal.log_registry
    known = {*registry.artifact_names, *(name for names in registry.log_alias_to_log_qnames.values() for name in names)}
    assert {*TORCH_LOGS} <= known
    assert {level for levels in TORCH_LOGS.values() for level in levels} == {*LEVELS}
    assert Config(debug=frozenset({"code"})).with_logs(["guards", "c10d"]).debug == {"code", "guards"}


def test_a_listener_hears_captures_and_recompiles() -> None:
    heard: list[tuple[str, dict[str, Any]]] = []

    def broken(x: Any) -> Any:
        return x if x.sum() > 0 else -x

    fn = firebrick.compile(broken, backend="eager")
    with listening(lambda kind, data: heard.append((kind, data))):
        fn(torch.ones(3))
        fn(torch.ones(4))
    fn(torch.ones(3, dtype=torch.float64))
    (first, *_), (again, *_) = ([d for k, d in heard if k == kind] for kind in ("capture", "recompile"))
    assert len(heard) <= 8 and "float64" not in str(heard)
    assert first["name"].endswith("broken") and "data-dependent-branch" in first["break"]
    assert any("f32[3]" in guard for guard in first["guards"])
    assert (again["why"], again["line"]) == ("x.shape[0] was 3, now 4", broken.__code__.co_firstlineno)
    assert "f32[3]" in again["guard"]
