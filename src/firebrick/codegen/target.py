"""Facts about the machine that kernels are generated for."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firebrick.config import Config

__all__ = ["Target", "detect"]


@dataclass(frozen=True, slots=True)
class Target:
    """A CPU as code generation sees it.

    vector_bytes: width of its SIMD registers; 0 means no vectors. threads: what the schedule is sized for, never
    baked into kernels. sleef: suffixes of SLEEF's vector functions for f32 and f64.
    """

    simd: str
    vector_bytes: int
    threads: int
    flags: tuple[str, ...]
    sleef: tuple[str, str]
    device: str = "cpu"

    def lanes(self, nbytes: int) -> int:
        """Elements of `nbytes` in one register; 1 without vectors."""
        return max(1, self.vector_bytes // nbytes)

    def key(self) -> str:
        """Text that belongs into cache keys: what generated code depends on."""
        return f"{platform.machine()}-{self.simd}-{' '.join(self.flags)}"


@dataclass(frozen=True, slots=True)
class _Row:
    needs: frozenset[str]
    vector_bytes: int
    flags: tuple[str, ...]
    sleef: tuple[str, str]


_SIMD: Mapping[str, _Row] = {
    "avx512": _Row(
        frozenset(("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "f16c")),
        64,
        ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c", "-mprefer-vector-width=512"),
        ("f16", "d8"),
    ),
    "avx2": _Row(frozenset(("avx2", "fma", "f16c")), 32, ("-mavx2", "-mfma", "-mf16c"), ("f8", "d4")),
    "neon": _Row(frozenset(("asimd",)), 16, (), ("f4", "d2")),
    "scalar": _Row(frozenset(), 0, (), ("", "")),
}
"""SIMD level -> what the CPU must have, register width, compiler flags, suffixes of SLEEF's names; best first."""


@lru_cache(maxsize=1)
def _cpu_features() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset(("asimd",)) if platform.machine() in ("arm64", "aarch64") else frozenset()
    for line in text.splitlines():
        if line.startswith(("flags", "Features")):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def detect(config: Config) -> Target:
    """The machine that this process runs on, or the SIMD level that `config.simd` asks for."""
    level = config.simd
    if level == "auto":
        found = _cpu_features()
        level = next(name for name, row in _SIMD.items() if row.needs <= found)
    row = _SIMD[level]
    threads = config.threads or len(os.sched_getaffinity(0))
    contract = "-ffp-contract=off" if config.numerics == "eager" else "-ffp-contract=fast"
    return Target(level, row.vector_bytes, threads, (*row.flags, contract), row.sleef)
