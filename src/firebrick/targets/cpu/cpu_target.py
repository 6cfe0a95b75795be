"""The CPU as a target: facts about it, and the C++ generator behind the calls that every target has."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from firebrick.artifact import Unit
from firebrick.config import Config
from firebrick.ir.index.expr import Expr
from firebrick.ir.kernels.groups import GroupPlan, PlannedLaunch, Work
from firebrick.ir.kernels.schedule import Kernel, Schedule
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Buffer, Extern
from firebrick.ir.loops.values import Table
from firebrick.targets.base import Choice, FusionFacts, Target
from firebrick.targets.cpu.choices import find_choices
from firebrick.targets.cpu.cpp_types import SCALAR, constant_text, index_text
from firebrick.targets.cpu.handwritten import plan_handwritten, written_text
from firebrick.targets.cpu.layouts import LAYOUTS
from firebrick.targets.cpu.loop_kernel import kernel_text
from firebrick.targets.cpu.measured_runs import probe, probes_of
from firebrick.targets.cpu.measuring import evicting, measure
from firebrick.targets.cpu.panel_kernel import BF16_LEVELS
from firebrick.targets.cpu.plan import lane_plan
from firebrick.targets.cpu.processor import caches, features, processor
from firebrick.targets.cpu.scalar_functions import ROWS
from firebrick.targets.cpu.unit_writer import Unit as Writing
from firebrick.targets.cpu.units import flags_of, kernel_units
from firebrick.targets.tree_kernels import plan_tree

_CACHE_LINE = 64


@dataclass(frozen=True, slots=True)
class CpuTarget(Target):
    """A CPU: kernels are C++ and run on torch's memory.

    In compiled graphs the native host program allocates and launches; the calls here do the same from Python.
    flags: of the C++ compiler. sleef: bytes of the shortest vectors that SLEEF's functions take. exact:
    functions have the bits of eager PyTorch's. cache: bytes of a core's second-level cache.
    """

    simd: str
    vector_bytes: int
    threads: int
    flags: tuple[str, ...] = ()
    sleef: int = 0
    exact: bool = False
    cache: int = 1 << 20

    name = "cpu"
    portable = 'compile with options={"simd": "avx2"} (or another level that both have), not measured, before saving'
    shares_memory = True
    dtypes = {d: SCALAR[d] for d in SCALAR if DTYPES[d].loops}  # noqa: RUF012 - a table
    functions = ROWS

    def lanes(self, nbytes: int) -> int:
        """Elements of `nbytes` in one register; 1 without vectors."""
        return max(1, self.vector_bytes // nbytes)

    def fusion(self) -> FusionFacts:
        """A kernel is shared out among threads."""
        return FusionFacts(independent=self.threads, alignment=_CACHE_LINE)

    def plan(self, work: Work, facts: Table) -> GroupPlan:
        """One kernel: a loop tree with lanes and shared loops."""
        return GroupPlan((plan_tree(work, facts, partial(lane_plan, vector_bytes=self.vector_bytes)),))

    def widens(self, dtype: torch.dtype) -> bool:
        """float16 where oneDNN has no products of it, bfloat16 where there are no instructions for it."""
        if dtype is torch.float16:
            return not torch.ops.mkldnn._is_mkldnn_fp16_supported()
        return dtype is torch.bfloat16 and self.vector_bytes > 16 and self.simd not in BF16_LEVELS

    def choices(self, op: str, args: tuple[Any, ...]) -> tuple[Choice, ...]:
        """Kernels written by hand, oneDNN's, and ATen's."""
        return find_choices(self, op, args)

    def measured(self, op: str, args: tuple[Any, ...], forms: Mapping[str, int], config: Config) -> Mapping[str, float]:
        """Those of matmuls, batches of them, attention, and dense convolutions of images."""
        return measure(self, config, op, args, forms)

    def prepare(self, calls: Iterable[tuple[str, tuple[Any, ...]]], config: Config) -> object:
        """Build the probes that these calls need."""
        some = calls if self.vector_bytes and not self.exact else ()
        kinds = {kernels for call in some for kernels in probes_of(self, *call)}
        for kind, detail in kinds:
            probe(self, config, kind, detail)
        return evicting() if kinds else None

    def layouts(self, op: str, args: Sequence[Any], out: Sequence[Expr]) -> Iterable[tuple[Expr, ...] | None]:
        """What kernels written by hand want."""
        return LAYOUTS[op](args, out)

    def plan_call(self, call: Extern, buffers: Mapping[str, Buffer]) -> PlannedLaunch | None:
        """One of the kernels written by hand."""
        return plan_handwritten(call, buffers)

    def level(self) -> str:
        """The SIMD level."""
        return self.simd

    def runs_level(self, level: str) -> bool:
        """Whether this machine has a SIMD level."""
        return runs_here(level)

    def key(self) -> str:
        """Text that belongs into cache keys."""
        return f"{platform.machine()}-{self.simd}-{' '.join(self.flags)}\n{self.threads} threads, {self.cache}"

    def model(self) -> str:
        """The processor."""
        return processor()

    def constant(self, value: bool | int | float, dtype: str) -> str:
        """A number."""
        return constant_text(value, dtype)

    def index(self, expr: Expr) -> str:
        """An index over int64_t."""
        return index_text(expr, {})

    def kernel(self, kernel: Kernel) -> str:
        """Text of one kernel, less what `source` puts before it."""
        unit = Writing(self, self.exact)
        return kernel_text(kernel, unit) if kernel.loops else written_text(kernel.body, unit, kernel.name)

    def source(self, schedule: Schedule, config: Config) -> list[str]:
        """Translation units, those first that take long to build."""
        return kernel_units(schedule, self, config)

    def units(self, schedule: Schedule, config: Config) -> tuple[Unit, ...]:
        """Texts with the names that each defines and the flags that it is built with."""
        texts, names = self.source(schedule, config), [k.name for k in schedule.kernels]
        defined = [tuple(n for n in names if len(texts) == 1 or f" {n}(" in text) for text in texts]
        parts = zip(texts, defined, strict=True)
        return tuple(Unit(f"u{i}", t, d, (*flags_of(t), *self.flags)) for i, (t, d) in enumerate(parts))


@dataclass(frozen=True, slots=True)
class _Row:
    needs: frozenset[str]
    vector_bytes: int
    flags: tuple[str, ...] = ()
    sleef: int = 0


_AVX512 = _Row(
    frozenset(("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma", "f16c")),
    64,
    ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c", "-mprefer-vector-width=512"),
    32,
)
_SIMD: Mapping[str, _Row] = {
    "avx512_amx": replace(_AVX512, needs=_AVX512.needs | {"avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"}),
    "avx512_bf16": replace(_AVX512, needs=_AVX512.needs | {"avx512_vnni", "avx512_bf16"}),
    "avx512_vnni": replace(_AVX512, needs=_AVX512.needs | {"avx512_vnni"}),
    "avx512": _AVX512,
    "avx2": _Row(frozenset(("avx2", "fma", "f16c")), 32, ("-mavx2", "-mfma", "-mf16c"), 32),
    "neon": _Row(frozenset(("asimd",)), 16, (), 16),
    "scalar": _Row(frozenset(), 0, ()),
}
"""SIMD level -> what the CPU must have, register width, compiler flags, SLEEF's shortest vector; best first."""


def runs_here(simd: str) -> bool:
    """Whether this machine has a SIMD level."""
    return simd in _SIMD and _SIMD[simd].needs <= features()


def detect(config: Config) -> CpuTarget:
    """The machine that this process runs on, or the SIMD level that `config.simd` asks for."""
    level = next(filter(runs_here, _SIMD)) if config.simd == "auto" else config.simd
    row = _SIMD[level]
    threads = config.threads or min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    contract = "-ffp-contract=off" if config.numerics == "eager" else "-ffp-contract=fast"
    flags = (*row.flags, contract)
    return CpuTarget(level, row.vector_bytes, threads, flags, row.sleef, config.numerics == "eager", caches()[2])
