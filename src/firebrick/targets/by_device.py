"""The one table of machines: type of device -> what makes its target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

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


def measures(config: Config) -> bool:
    """Whether kernels are chosen by their times here, which may be other kernels in another process."""
    chosen = config.autotune or (config.measure is not False and config.numerics != "eager")
    return chosen and not (config.deterministic or torch.are_deterministic_algorithms_enabled())
