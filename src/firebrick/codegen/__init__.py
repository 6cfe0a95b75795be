"""Code generation: a schedule turned into an artifact of C++ texts and a host table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.artifact import Artifact
from firebrick.codegen.host import host_program, show_table
from firebrick.targets.cpu.handwritten import own_kernels
from firebrick.targets.cpu.machine import CpuTarget, best_simd, detect, runs_here

if TYPE_CHECKING:
    from firebrick.config import Config
    from firebrick.loops.schedule import Schedule

__all__ = ["CpuTarget", "best_simd", "detect", "generate", "runs_here", "show_table"]


def generate(schedule: Schedule, target: CpuTarget, config: Config) -> Artifact:
    """Return the artifact of a schedule, not yet built.

    Raises:
        LoweringError: a library call or a symbolic size has no place in the host program.
    """
    names = [*(k.name for k in schedule.kernels), *own_kernels(schedule)]
    units = target.units(target.source(schedule, config), names)
    return Artifact(schedule.program.name, host_program(schedule), units)
