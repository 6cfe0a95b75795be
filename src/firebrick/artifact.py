"""The artifact: a compiled graph as plain data, and its file format.

An artifact holds the host table (what to allocate, launch and call), the C++ text of each unit and, once built,
each unit's machine code. A file is a header line, a JSON index, and blobs; each blob has a checksum. Nothing in it
is pickled, so reading one can't run code; machine code runs only after its checksum was verified and only from
files that the cache trusts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from firebrick.errors import CacheError

SCHEMA = 4
"""Version of the file format and of the host table; files of another version are not read."""

_MAGIC = b"FIREBRICK "


@dataclass(frozen=True, slots=True)
class Unit:
    """One translation unit: text that defines the functions `kernels`, built with `flags` by a `builder`.

    builder: "c++", or "triton" for a module of one kernel.
    """

    name: str
    text: str
    kernels: tuple[str, ...]
    flags: tuple[str, ...] = ()
    builder: str = "c++"

    def key(self, compiler: str) -> str:
        """Content address of the machine code that `compiler` makes of it."""
        return checksum("\0".join((compiler, *self.flags, self.text)).encode())


@dataclass(frozen=True, slots=True)
class Artifact:
    """A compiled graph.

    table: the host program, see `firebrick.host.table`. code: unit name -> machine code (a shared library), empty
    until built. extra: what the pipeline wants to keep beside it (JSON-able).
    """

    name: str
    table: Mapping[str, Any]
    units: tuple[Unit, ...] = ()
    code: Mapping[str, bytes] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_built(self) -> bool:
        """Whether every unit has its machine code."""
        return all(unit.name in self.code for unit in self.units)

    def with_code(self, code: Mapping[str, bytes]) -> Artifact:
        """Return a copy that holds this machine code."""
        return replace(self, code=dict(code))

    def with_extra(self, **extra: Any) -> Artifact:
        """Return a copy with more kept beside it."""
        return replace(self, extra={**self.extra, **extra})


def checksum(data: bytes) -> str:
    """Content hash that the cache and the file format use."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def encode(artifact: Artifact, about: Mapping[str, Any] | None = None) -> bytes:
    """Return the file of an artifact. `about` is kept in the index, to be read without the rest."""
    blobs: list[bytes] = []
    rows: list[tuple[str, int, str]] = []

    def keep(name: str, data: bytes) -> None:
        blobs.append(data)
        rows.append((name, len(data), checksum(data)))

    body = {
        "name": artifact.name,
        "table": artifact.table,
        "units": [[u.name, list(u.kernels), list(u.flags), u.builder] for u in artifact.units],
        "extra": artifact.extra,
    }
    keep("body", json.dumps(body, separators=(",", ":")).encode())
    for unit in artifact.units:
        keep(f"text/{unit.name}", unit.text.encode())
    for name, code in artifact.code.items():
        keep(f"code/{name}", code)
    index = json.dumps({"about": dict(about or {}), "blobs": rows}, separators=(",", ":")).encode()
    head = _MAGIC + f"{SCHEMA} {len(index)} {checksum(index)}\n".encode()
    return b"".join((head, index, *blobs))


def _head(data: bytes) -> tuple[int, int, str]:
    """Place and size of the index, and its checksum."""
    end = data.find(b"\n", 0, 200)
    if not data.startswith(_MAGIC) or end < 0:
        raise CacheError("not a Firebrick artifact")
    parts = data[len(_MAGIC) : end].split()
    if not parts or not parts[0].isdigit():
        raise CacheError("not a Firebrick artifact")
    if int(parts[0]) != SCHEMA:
        raise CacheError(f"artifact of schema {int(parts[0])}, this version reads {SCHEMA}")
    if len(parts) != 3 or not parts[1].isdigit():
        raise CacheError("the artifact's header is corrupt")
    return end + 1, int(parts[1]), parts[2].decode("ascii", "replace")


def _index(data: bytes) -> tuple[dict[str, Any], int]:
    start, size, expected = _head(data)
    raw = data[start : start + size]
    if len(raw) != size or checksum(raw) != expected:
        raise CacheError("the artifact's index is truncated or corrupt")
    return json.loads(raw), start + size


def read_index(data: bytes) -> dict[str, Any]:
    """Return `about` of an artifact's file; the first 64 KiB or more of it are enough in practice.

    Raises:
        CacheError: the file is foreign, of another schema, truncated or corrupt.
    """
    index, _ = _index(data)
    return index["about"]


def decode(data: bytes) -> Artifact:
    """Read an artifact from its file.

    Raises:
        CacheError: the file is foreign, of another schema, truncated or corrupt.
    """
    index, place = _index(data)
    blobs: dict[str, bytes] = {}
    for name, size, expected in index["blobs"]:
        blob = data[place : place + size]
        place += size
        if len(blob) != size or checksum(blob) != expected:
            raise CacheError(f"the artifact's {name} is truncated or corrupt")
        blobs[name] = blob
    if place != len(data):
        raise CacheError("the artifact has bytes that its index does not name")
    body = json.loads(blobs["body"])
    units = tuple(
        Unit(name, blobs[f"text/{name}"].decode(), tuple(kernels), tuple(flags), builder)
        for name, kernels, flags, builder in body["units"]
    )
    code = {name.removeprefix("code/"): blob for name, blob in blobs.items() if name.startswith("code/")}
    return Artifact(body["name"], body["table"], units, code, body["extra"])
