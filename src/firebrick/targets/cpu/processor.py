"""What this machine's processor says of itself: its model, and the sizes of its caches."""

from __future__ import annotations

import ctypes
import os
import platform
from functools import lru_cache
from pathlib import Path

_IDENTITY = ("vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer", "CPU part", "CPU variant")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TILES = 158, 0x1023, 18
"""arch_prctl(ARCH_REQ_XCOMP_PERM, tile data), by which Linux lets a process and its children use AMX."""
_USUAL = {1: 32 << 10, 2: 1 << 20, 3: 32 << 20}
"""Bytes of a cache where the system does not say."""


@lru_cache(maxsize=1)
def _facts() -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    try:
        block = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    rows = (line.partition(":") for line in block.splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def features() -> frozenset[str]:
    """The instructions that the processor has beyond its first, by the names of /proc/cpuinfo."""
    facts, amx = _facts(), {"amx_int8", "amx_bf16"}
    if not facts and platform.machine() in ("arm64", "aarch64"):
        return frozenset(("asimd",))
    flags = frozenset((facts.get("flags") or facts.get("Features") or "").split())
    return flags - amx if amx & flags and ctypes.CDLL(None).syscall(*_TILES) else flags


def processor() -> str:
    """The model, and its caches: on two machines of which this is equal the same kernel is fastest."""
    named = [_facts()[field] for field in _IDENTITY if field in _facts()]
    return " ".join([*(named or [platform.machine(), platform.processor()]), *map(str, caches().values())])


@lru_cache(maxsize=1)
def caches() -> dict[int, int]:
    """Level -> bytes of a data cache as one core sees it."""
    sizes = dict(_USUAL)
    core = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    for index in Path(f"/sys/devices/system/cpu/cpu{core}/cache").glob("index*"):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
            if kind != "Instruction":
                sizes[int(level)] = int(size[:-1]) * _UNITS[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return sizes
