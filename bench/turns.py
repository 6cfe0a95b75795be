"""A measurement's turn: under `python -m bench.together` a process waits for it between preparing and measuring."""

from __future__ import annotations

import os

VARIABLE = "FIREBRICK_BENCH_TURN"
"""Two descriptors: to read the word that begins the turn from, and to say on that all is prepared."""


def wait() -> None:
    """Say that what is slow and need not be measured alone is done, and wait. Does nothing outside of `together`."""
    if pipes := os.environ.pop(VARIABLE, ""):
        begin, prepared = map(int, pipes.split())
        os.write(prepared, b"r")
        os.read(begin, 1)
