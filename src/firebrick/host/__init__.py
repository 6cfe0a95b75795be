"""Code generation: a schedule turned into an artifact of C++ texts and a host table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from firebrick.artifact import Artifact, Unit
from firebrick.config import Config
from firebrick.host.table import host_program, show_table
from firebrick.ir.kernels.schedule import Schedule
from firebrick.targets.base import Target

__all__ = ["generate", "show_table"]


def generate(schedule: Schedule, targets: Mapping[str, Target], config: Config) -> Artifact:
    """Return the artifact of a schedule, not yet built.

    Raises:
        LoweringError: a library call or a symbolic size has no place in the host program.
    """
    units: list[Unit] = []
    for device, target in targets.items():
        mine = tuple([k for k in schedule.kernels if k.device == device])
        units += target.units(replace(schedule, kernels=mine), config)
    return Artifact(schedule.program.name, host_program(schedule), tuple(units))
