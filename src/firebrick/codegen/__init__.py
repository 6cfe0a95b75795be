"""Code generation: a schedule turned into an artifact of C++ texts and a host table."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from firebrick.artifact import Artifact, Unit
from firebrick.codegen.host import CHECK_KERNEL, host_program, show_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from firebrick.config import Config
    from firebrick.loops.schedule import Schedule
    from firebrick.targets.base import Target

__all__ = ["generate", "show_table"]


def generate(schedule: Schedule, targets: Mapping[str, Target], config: Config) -> Artifact:
    """Return the artifact of a schedule, not yet built.

    Raises:
        LoweringError: a library call or a symbolic size has no place in the host program.
    """
    units: list[Unit] = []
    table = host_program(schedule)
    for device, target in targets.items():
        mine = tuple([k for k in schedule.kernels if k.device == device])
        units += target.units(replace(schedule, kernels=mine), config)
        name = f"{CHECK_KERNEL}_{device}"
        if any(step[:2] == ["kernel", name] for step in table["steps"]):
            units.append(target.check_unit(name))
    return Artifact(schedule.program.name, table, tuple(units))
