"""A digest of the compiler's own source, so that a changed compiler never meets the kernels of an older one."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent.parent
_SUFFIXES = (".py", ".c", ".h", ".so", ".pyd")
_ASIDE = frozenset({"tools", "__pycache__"})
"""Folders that nothing of a compile depends on."""
_BYTES = 20
_NOTES = 64
"""Digests that a cache's folder remembers."""


@functools.cache
def source_digest(folder: Path) -> str:
    """The digest of this package's source, remembered in `folder` by sizes and times of the files."""
    return digest_of(_PACKAGE, folder)


def digest_of(package: Path, folder: Path) -> str:
    """The digest of a package's source: the contents of its files, by their names below it."""
    files = sorted(_files(package), key=lambda entry: entry.path)
    if any(entry.name.endswith(".c") for entry in files):  # what the extension is built from says more than how
        files = [entry for entry in files if not entry.name.endswith((".so", ".pyd"))]
    stats = [entry.stat() for entry in files]
    stamps = array("q", [n for f in stats for n in (f.st_size, f.st_mtime_ns, f.st_ctime_ns, f.st_ino)]).tobytes()
    facts = "\0".join([entry.path for entry in files]).encode() + stamps
    note = folder / "source" / hashlib.blake2b(facts, digest_size=12).hexdigest()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if note.stat().st_uid == os.geteuid() and len(text := note.read_text()) == 2 * _BYTES:
            return text
    whole = hashlib.blake2b(digest_size=_BYTES)
    for entry in files:
        content = Path(entry.path).read_bytes()
        whole.update(f"{Path(entry.path).relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    _write(note, whole.hexdigest())
    return whole.hexdigest()


def _files(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(_SUFFIXES):
                yield entry
            elif entry.name not in _ASIDE and "." not in entry.name and entry.is_dir():
                yield from _files(entry.path)


def _write(note: Path, text: str) -> None:
    """Remember a digest; a failure costs only the time to find it again."""
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        others = list(note.parent.iterdir())
        for other in others if len(others) >= _NOTES else ():
            other.unlink(missing_ok=True)
        with whole_file(note, note.parent) as file:
            file.write(text.encode())


@contextlib.contextmanager
def whole_file(path: Path, folder: Path) -> Iterator[Any]:
    """A file to write in `folder` that appears at `path` once the block has ended, whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{path.name}", delete=False) as file:
        try:
            yield file
            file.close()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
