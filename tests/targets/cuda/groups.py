"""A program's schedule with kernels for a card, whatever device it says."""

from __future__ import annotations

from firebrick.config import Config
from firebrick.scheduling import schedule
from firebrick.targets.cuda.facts import CARDS
from firebrick.targets.cuda.machine import CudaTarget


def schedule_for(program, card=CARDS[90]):
    """The schedule, and the text of each kernel."""
    target = CudaTarget(card)
    made = schedule(program, {"cpu": target}, Config())
    return made, [target.kernel(k) for k in made.kernels]
