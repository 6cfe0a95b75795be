"""The one table of machines: type of device -> what makes its target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from firebrick.config import Config
from firebrick.ir.graph.calls import key_of, work_of
from firebrick.targets.base import Target
from firebrick.targets.cpu.cpu_target import detect
from firebrick.targets.cuda.cuda_target import find_card

TARGETS: Mapping[str, Callable[[Config], Target | None]] = {"cpu": detect, "cuda": find_card}
"""Type of device -> the target of this process's machine under the settings of a compile, if it has one."""
REST = 0.02
"""Share of a graph's work that is not worth measuring: costs choose what of it there is, the least first."""


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


def division_of(subjects: Sequence[Any], layers: int) -> tuple[list[Any], set[Any]]:
    """What is worth measuring of ops with their arguments, and the keys of the rest. layers: what four stand for."""
    counts = Counter(key_of(*subject) for subject in subjects)
    by_key = {key_of(*subject): subject for subject in subjects}
    if not all(type(n) is int for _, args in subjects for a in args if isinstance(a, torch.Tensor) for n in a.shape):
        return list(by_key.values()), set()
    work = {k: work_of(s[0], *s[1]) * counts[k] * (layers if counts[k] >= 4 else 4) for k, s in by_key.items()}
    left, rest = REST * sum(work.values()), set[Any]()
    for key in sorted(work, key=work.__getitem__):
        left -= work[key]
        if left >= 0:
            rest.add(key)
    return [subject for key, subject in by_key.items() if key not in rest], rest
