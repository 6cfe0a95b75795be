"""Programs that once did something else when compiled; found by `make fuzz`, shrunk, and named after the bug."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.compare import compare  # noqa: E402

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.py"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_compiled_as_plain(path, monkeypatch):
    monkeypatch.setenv("FIREBRICK_STRICT", "1")
    assert compare(path.read_text()) is None
