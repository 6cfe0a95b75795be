"""A program's schedule with kernels for a card, whatever device it says."""

from __future__ import annotations

from firebrick.config import Config
from firebrick.fuse import schedule
from firebrick.targets.cuda.cuda_target import CudaTarget
from firebrick.targets.cuda.facts import CARDS


def schedule_for(program, card=CARDS[90]):
    """The schedule, and the text of each kernel."""
    target = CudaTarget(card)
    made = schedule(program, {"cpu": target}, Config())
    return made, [target.kernel(k) for k in made.kernels]
