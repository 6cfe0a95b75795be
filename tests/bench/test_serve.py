"""Latency under load: what the command prints, and that a contender that fails is a row."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import serve  # noqa: E402

pytestmark = pytest.mark.compiler


def broken(model, kwargs):
    raise RuntimeError("it has no such op\nand a long trace")


@pytest.mark.parametrize("form", ["json", "markdown"])
def test_rows_of_each_contender_and_load(form, monkeypatch, capsys):
    monkeypatch.setitem(serve.CONTENDERS, "onnxruntime", broken)
    before = torch.get_num_threads()
    try:
        arguments = ["lstm", "--clients", "1", "2", "--seconds", "0.01", "--threads", "1"]
        serve.main([*arguments, "--json"] if form == "json" else arguments)
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr().out
    if form == "json":
        rows = json.loads(printed)
        keys = [(row["clients"], row["contender"]) for row in rows]
        assert keys == [(n, who) for n in (1, 2) for who in ("eager", "firebrick", "onnxruntime")]
        assert all(row["p99"] >= row["p50"] > 0 < row["rate"] for row in rows if not row["failure"])
        assert {row["failure"] for row in rows} == {"", "RuntimeError: it has no such op"}
        return
    lines = printed.splitlines()
    assert len(lines) == 8
    assert {line.count("|") for line in lines} == {10}
