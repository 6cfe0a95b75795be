"""Code generation: a schedule turned into an artifact of C++ texts and a host table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.artifact import Artifact, Unit
from firebrick.codegen.cpp import FLAGS, kernel_names, kernel_units
from firebrick.codegen.host import host_program, show_table
from firebrick.codegen.target import Target, detect

if TYPE_CHECKING:
    from firebrick.config import Config
    from firebrick.loops.schedule import Schedule

__all__ = ["Target", "detect", "generate", "show_table"]


def generate(schedule: Schedule, target: Target, config: Config) -> Artifact:
    """Return the artifact of a schedule, not yet built.

    Raises:
        LoweringError: a library call or a symbolic size has no place in the host program.
    """
    names = kernel_names(schedule)
    texts = kernel_units(schedule, target, config)
    flags = (*FLAGS, *target.flags)
    units = tuple(
        Unit(f"u{i}", text, tuple(n for n in names if len(texts) == 1 or f" {n}(" in text), flags)
        for i, text in enumerate(texts)
    )
    return Artifact(schedule.program.name, host_program(schedule), units)
