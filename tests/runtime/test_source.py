"""The digest of the compiler's source, which is part of every key of the disk cache."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firebrick.runtime import source


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    for name, text in {"one.py": "a", "inner/two.py": "b", "native/three.c": "c", "tools/four.py": "d"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("name", ["one.py", "inner/two.py", "native/three.c", "inner/five.py"])
def test_it_changes_with_the_source(package: Path, tmp_path: Path, name: str) -> None:
    before = source.digest_of(package, tmp_path / "cache")
    (package / name).write_text("x")
    assert source.digest_of(package, tmp_path / "cache") != before


def test_it_depends_on_contents_alone(package: Path, tmp_path: Path) -> None:
    before = source.digest_of(package, tmp_path / "cache")
    os.utime(package / "one.py", (1, 1))
    (package / "tools/four.py").write_text("x")
    (package / "_native.so").write_text("built")
    assert source.digest_of(package, tmp_path / "cache") == before
    moved = package.rename(tmp_path / "elsewhere")
    assert source.digest_of(moved, tmp_path / "other") == before


def test_contents_are_read_once(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = source.digest_of(package, tmp_path / "cache")
    monkeypatch.setattr(Path, "read_bytes", lambda self: pytest.fail("read again"))
    assert source.digest_of(package, tmp_path / "cache") == before


def test_a_folder_that_can_not_be_written_costs_nothing_but_time(package: Path) -> None:
    assert source.digest_of(package, Path("/dev/null/cache")) == source.digest_of(package, Path("/dev/null/cache"))
