"""The one table of machines: type of device -> what makes its target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from firebrick.config import Config
from firebrick.targets.base import Target
from firebrick.targets.cpu.cpu_target import detect
from firebrick.targets.cuda.cuda_target import find_card

TARGETS: Mapping[str, Callable[[Config], Target | None]] = {"cpu": detect, "cuda": find_card}
"""Type of device -> the target of this process's machine under the settings of a compile, if it has one."""


def find_targets(devices: Iterable[str], config: Config) -> dict[str, Target]:
    """The targets of these types of devices; what lies on a device of another type is left to PyTorch's own kernels.

    That of CPUs is always there, since numbers that a program computes are theirs.
    """
    targets = {device: TARGETS[device](config) for device in sorted({"cpu", *devices}) if device in TARGETS}
    return {device: target for device, target in targets.items() if target is not None}
