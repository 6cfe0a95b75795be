"""A GPU as a target: its facts, and the planner and the writer of its kernels behind the calls that targets have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from firebrick.targets.base import FusionFacts, Target
from firebrick.targets.cuda.launches import plan_group
from firebrick.targets.cuda.triton_text import kernel_text, unit_text

if TYPE_CHECKING:
    from firebrick.config import Config
    from firebrick.loops.groups import GroupPlan, Work
    from firebrick.loops.schedule import Kernel, Schedule
    from firebrick.loops.values import Table
    from firebrick.targets.cuda.facts import CardFacts

__all__ = ["CudaTarget"]


@dataclass(frozen=True, slots=True)
class CudaTarget(Target):
    """A GPU: kernels are Triton text."""

    card: CardFacts

    name = "cuda"

    def fusion(self) -> FusionFacts:
        """One iteration is enough: a group whose rows are few is split over programs when it is planned."""
        return FusionFacts(independent=1)

    def key(self) -> str:
        """Text that belongs into cache keys."""
        return self.card.key()

    def plan(self, work: Work, facts: Table) -> GroupPlan:
        """The kernels that do a group's work, as tiles."""
        del facts
        return plan_group(work, self.card)

    def kernel(self, kernel: Kernel) -> str:
        """Text of one kernel, less what `source` puts before it."""
        return kernel_text(kernel.name, kernel.body, [p.name for p in kernel.params], kernel.sizes)

    def source(self, schedule: Schedule, config: Config) -> list[str]:
        """A module of Triton text for each kernel, since each becomes machine code of its own."""
        del config
        return [unit_text([self.kernel(k)]) for k in schedule.kernels if k.device == self.name]
