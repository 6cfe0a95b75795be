"""The disk cache: artifacts by content address, safe to share between processes and safe to read.

    <cache_dir>/v<schema>/ab/abcdef....fb   one file an entry, see `firebrick.artifact`
    <cache_dir>/v<schema>/ab/abcdef....key  what its key was made of, as JSON: written when it was not found
    <cache_dir>/v<schema>/tmp, locks        files being written; one lock a key that is being compiled

Entries hold no pickle and are checksummed; a folder or entry of another owner, or that others can write, is refused.
Whatever goes wrong with the disk, the compile goes on without it, with one warning. Behind the disk there may be a
tier that machines share (`firebrick.runtime.remote`).
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import itertools
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from firebrick.artifact import SCHEMA, Artifact, decode, encode, read_index
from firebrick.config import Config
from firebrick.errors import CacheError
from firebrick.report import recorder
from firebrick.runtime.remote import connect
from firebrick.runtime.source import whole_file

_HEAD_BYTES = 1 << 16
_STALE_SECONDS = 3600
_LOCK_SECONDS = 300
_MISSES_SHOWN = 20
_KEYS_COMPARED = 200
_EVICT_EVERY = 16


@dataclass(frozen=True, slots=True)
class Key:
    """The content address of a compile. parts: the texts that it is made of, by name. name: what is compiled."""

    digest: str
    parts: Mapping[str, str]
    name: str = ""


def make_key(parts: Mapping[str, str], name: str = "") -> Key:
    """Hash named texts: graph, shapes, options, versions, target. None may hold paths, users or addresses."""
    digests = {name: hashlib.blake2b(text.encode(), digest_size=12).hexdigest() for name, text in sorted(parts.items())}
    whole = json.dumps([SCHEMA, digests], separators=(",", ":")).encode()
    return Key(hashlib.blake2b(whole, digest_size=20).hexdigest(), dict(parts), name)


def _trusted(facts: os.stat_result) -> bool:
    """Whether only we can have written it."""
    return facts.st_uid == os.geteuid() and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


class DiskCache:
    """Artifacts on disk, for one configuration. Every method may be called from several threads and processes."""

    _stores = 0

    def __init__(self, config: Config) -> None:
        self.root = config.cache_dir / f"v{SCHEMA}"
        self.limit = config.cache_size_mb << 20
        self.enabled = config.cache
        self.remote = connect(config)

    # ---- reading

    def load(self, key: Key) -> Artifact | None:
        """Return the entry of a key. A corrupt one is removed, with one warning."""
        if not self.enabled:
            return None
        path = self._path(key.digest)
        try:
            artifact = decode(self._read(path))
        except FileNotFoundError:
            return None
        except (CacheError, ValueError, KeyError, TypeError) as error:
            text = f"firebrick: a cache entry is not usable and is compiled anew: {error}"
            recorder.warn_once(f"cache entry {self.root}", text)
            self._remove(path)
            return None
        except OSError as error:
            self._warn(error)
            return None
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > 60:
                os.utime(path)
        return artifact

    def fetch(self, key: Key, make: Callable[[], Artifact]) -> Artifact:
        """Return the entry of a key, made and stored if there is none; several processes at once make it once."""
        artifact = self.load(key)
        if artifact is None:
            with self.lock(key):
                artifact = self.load(key)
                if artifact is None:
                    artifact = self._shared(key)
                if artifact is None:
                    self._note_miss(key)
                    recorder.count("cache misses")
                    artifact = make()
                    self.store(key, artifact)
                    if self.remote is not None:
                        self.remote.put(key.digest, encode(artifact, {"name": artifact.name}))
                    return artifact
        recorder.count("cache hits")
        return artifact

    def _shared(self, key: Key) -> Artifact | None:
        """Return the entry that another machine stored, and keep it here."""
        data = None if self.remote is None else self.remote.get(key.digest)
        if data is None:
            return None
        try:
            artifact = decode(data)
        except (CacheError, ValueError, KeyError, TypeError) as error:
            recorder.warn_once("remote cache entry", f"firebrick: an entry of the shared cache is not usable: {error}")
            return None
        recorder.count("remote cache hits")
        self.store(key, artifact)
        return artifact

    def _read(self, path: Path, limit: int = -1) -> bytes:
        self._check_root()
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not _trusted(os.fstat(descriptor)):
                raise CacheError("it belongs to another user, or others can write it")
            return file.read(limit)

    def _check_root(self) -> None:
        if not _trusted(self.root.stat()):
            raise PermissionError(f"{self.root} belongs to another user, or others can write it")

    # ---- writing

    def store(self, key: Key, artifact: Artifact) -> None:
        """Write an entry; it appears whole or not at all."""
        if not self.enabled:
            return
        path = self._path(key.digest)
        try:
            self._write(path, encode(artifact, {"name": artifact.name}))
            if DiskCache._stores % _EVICT_EVERY == 0:
                self._evict()
            DiskCache._stores += 1
        except OSError as error:
            self._warn(error)

    def _write(self, path: Path, data: bytes) -> None:
        self._make_folders(path.parent)
        with whole_file(path, self.root / "tmp") as file:
            file.write(data)

    @contextlib.contextmanager
    def lock(self, key: Key) -> Iterator[None]:
        """Hold the lock of a key while it is compiled; without a usable disk, nothing is locked."""
        with contextlib.ExitStack() as stack:
            try:
                if self.enabled:
                    self._make_folders(self.root / "locks")
                    path = self.root / "locks" / f"{key.digest[:24]}.lock"
                    stack.enter_context(FileLock(str(path), timeout=_LOCK_SECONDS))
            except (OSError, NotImplementedError) as error:
                if not isinstance(error, Timeout):
                    self._warn(error)
            yield

    def _make_folders(self, folder: Path) -> None:
        for place in (self.root, self.root / "tmp", folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_root()

    def _path(self, digest: str) -> Path:
        return self.root / digest[:2] / f"{digest}.fb"

    def _warn(self, error: Exception) -> None:
        recorder.warn_once(
            f"cache {self.root}",
            f"firebrick: the disk cache is not usable ({error}); every process compiles anew. Set FIREBRICK_CACHE_DIR.",
        )

    @staticmethod
    def _remove(path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()

    # ---- upkeep

    def files(self, suffix: str = "fb") -> list[tuple[Path, os.stat_result]]:
        """Every entry's path and facts, latest use first; or those of the files beside them."""
        rows = []
        with contextlib.suppress(OSError):
            for path in self.root.glob(f"??/*.{suffix}"):
                with contextlib.suppress(OSError):
                    rows.append((path, path.stat()))
        return sorted(rows, key=lambda row: -row[1].st_mtime)

    def _evict(self) -> None:
        """Remove the least recently used entries beyond the size limit, and what killed processes left."""
        stale = time.time() - _STALE_SECONDS
        files, keys = self.files(), dict(self.files("key"))
        total = sum(facts.st_size for _, facts in files) + sum(facts.st_size for facts in keys.values())
        while files and total > self.limit:
            path, facts = files.pop()
            total -= facts.st_size
            self._remove(path)
        left = {path.with_suffix(".key") for path, _ in files}
        for path, facts in keys.items():
            if path not in left and facts.st_mtime < stale:  # one without an entry may be compiling
                self._remove(path)
        for folder in ("tmp", "locks"):
            for path in (self.root / folder).glob("*"):
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < stale:
                        path.unlink()

    def about(self, path: Path) -> dict[str, Any] | None:
        """What an entry's index says about it; None when it can't be read."""
        try:
            return read_index(self._read(path, _HEAD_BYTES))
        except (OSError, CacheError, ValueError, KeyError):
            return None

    # ---- misses

    def _note_miss(self, key: Key) -> None:
        """Keep what the key is made of, for `why_miss`."""
        if self.enabled:
            about = {"key": key.digest, "name": key.name, "time": int(time.time()), "parts": dict(key.parts)}
            with contextlib.suppress(OSError):  # the store that follows warns
                self._write(self._path(key.digest).with_suffix(".key"), json.dumps(about).encode())

    def keys(self) -> Iterator[dict[str, Any]]:
        """What the keys of the last misses are made of, latest first: key, name, time, parts."""
        for path, _ in self.files("key"):
            try:
                about = json.loads(self._read(path))
                if about["key"] == path.stem and all(isinstance(text, str) for text in about["parts"].values()):
                    yield {"name": str(about["name"]), "time": float(about["time"]), **about}
            except (OSError, CacheError, ValueError, KeyError, TypeError, AttributeError):
                continue


# ---------------------------------------------------------------- for the command line


def cache_state(config: Config) -> dict[str, Any]:
    """Return facts for `firebrick doctor`; nothing is created."""
    files, parent = DiskCache(config).files(), config.cache_dir
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    return {
        "path": str(config.cache_dir), "entries": len(files), "bytes": sum(facts.st_size for _, facts in files),
        "writable": os.access(parent, os.W_OK | os.X_OK), "existing_parent": str(parent),
    }  # fmt: skip


def cache_entries(config: Config) -> list[dict[str, Any]]:
    """Return the entries, latest use first: key, bytes, age, name."""
    cache, now, rows = DiskCache(config), time.time(), []
    for path, facts in cache.files():
        name = (cache.about(path) or {}).get("name", "(unreadable)")
        rows.append({"key": path.stem, "bytes": facts.st_size, "age": _age(now - facts.st_mtime), "name": name})
    return rows


def clear_cache(config: Config) -> int:
    """Remove every entry, those of other schema versions too; return how many there were."""
    count = 0
    for path in [*config.cache_dir.glob("v*/??/*.fb"), *config.cache_dir.glob("v*/??/*.key")]:
        with contextlib.suppress(OSError):
            path.unlink()
            count += path.suffix == ".fb"
    return count


def why_miss(config: Config, key: str = "") -> list[dict[str, Any]]:
    """Return the last misses, latest first, with what differs from the nearest entry; `key` picks by prefix."""
    rows = list(itertools.islice(DiskCache(config).keys(), _KEYS_COMPARED))
    misses = []
    for i, row in enumerate(rows[:_MISSES_SHOWN]):
        if row["key"].startswith(key):
            # Entries that were made later can't be what it was expected to find.
            best = nearest(row["parts"], [(other["name"], other["parts"]) for other in rows[i + 1 :]])
            why = ["no earlier entry to compare with"]
            if best is not None:
                why = [f"nearest is {best[0] or 'an entry'}", *differences(row["parts"], best[1])]
            misses.append({"key": row["key"], "name": row["name"], "age": _age(time.time() - row["time"]), "why": why})
    return misses


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


_LABELS: Mapping[str, str] = {
    "graph": "op {} of the graph", "inputs": "input {}", "constants": "captured tensor {}",
    "sharing": "which tensors share memory", "state": "torch's state", "passes": "the passes", "versions": "version",
    "target": "machine", "part": "part",
}  # fmt: skip
"""Part of a key -> what a line of it is called; {} is the line's number."""
_SHOWN = 4


def differences(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """What of a key differs from another, one sentence a difference; of a graph only the first."""
    sentences = []
    for name in sorted({*mine, *theirs}):
        now, then = mine.get(name, ""), theirs.get(name, "")
        if now == then:
            continue
        if name == "options":
            sentences += _options(now, then)
            continue
        lines = _lines(_LABELS.get(name, name), now.splitlines(), then.splitlines())
        shown = 1 if name == "graph" else _SHOWN
        sentences += lines[:shown]
        if len(lines) > shown:
            sentences.append(f"... and {len(lines) - shown} more of {name}")
    return sentences


def nearest(
    mine: Mapping[str, str], others: Iterable[tuple[str, Mapping[str, str]]]
) -> tuple[str, Mapping[str, str]] | None:
    """The (name, parts) of the key with the fewest differences; one with the same graph comes first."""
    best: tuple[tuple[int, ...], tuple[str, Mapping[str, str]]] | None = None
    for name, theirs in others:
        unlike = {part for part in {*mine, *theirs} if mine.get(part) != theirs.get(part)}
        if unlike:
            pairs = (zip_longest(*(key.get(part, "").splitlines() for key in (mine, theirs))) for part in unlike)
            lines = sum(a != b for rows in pairs for a, b in rows)
            rank = ("graph" in unlike, len(unlike), lines)
            if best is None or rank < best[0]:
                best = (rank, (name, theirs))
    return None if best is None else best[1]


def _lines(label: str, now: list[str], then: list[str]) -> list[str]:
    pairs = zip_longest(now, then, fillvalue="nothing")
    return [f"{label.format(i)} is {_short(a)}, was {_short(b)}" for i, (a, b) in enumerate(pairs) if a != b]


def _options(now: str, then: str) -> list[str]:
    try:
        mine, theirs = dict(ast.literal_eval(now)), dict(ast.literal_eval(then))
    except (ValueError, SyntaxError, TypeError):
        return ["the options"]
    names = [name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name)]
    return [f"option {name} is {mine.get(name)!r}, was {theirs.get(name)!r}" for name in names]


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:97]}..."
