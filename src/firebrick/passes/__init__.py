"""Passes over the ATen graph, in one ordered list.

Each takes an `AtenGraph` and returns it, changed in place where that is cheaper. Order matters:
folding comes before prepacking, which wants to see computed weights as constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firebrick.extend.registry import fingerprint as _fingerprint
from firebrick.extend.registry import registry
from firebrick.passes.fold import fold_constants
from firebrick.passes.prepack import prepack_linear
from firebrick.report import recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from firebrick.config import Config
    from firebrick.extend.graph import AtenGraph

__all__ = ["PASSES", "fingerprint", "run_passes"]

PASSES: tuple[Callable[[AtenGraph, Config], AtenGraph], ...] = (
    fold_constants,
    prepack_linear,
)
"""What the compiler itself does to every graph, in order."""


def run_passes(aten: AtenGraph, config: Config) -> AtenGraph:
    """Run `PASSES`, leaving out those that `config.disable_passes` names."""
    for step in PASSES:
        if step.__name__ not in config.disable_passes:
            with recorder.timed(f"pass {step.__name__}"):
                aten = step(aten, config)
    return aten


def fingerprint(config: Config) -> str | None:
    """Content hash of the registered passes that are on, for cache keys; None when one of them forbids caching."""
    return _fingerprint((*registry.active("torch", (), config), *registry.active("aten", (), config)))
