"""Several streams of one capture: each step on its own, behind those that it waits for.

Each stream has workspaces of libraries of its own, and memory that libraries take and give back within a call is given
again on the same stream only. What the program itself allocates stays until the capture ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


class Branches:
    """The streams, the first of which captures, and what a host table says of steps: see `host/table.py`."""

    def __init__(self, streams: Sequence[torch.cuda.Stream], rows: Sequence[Sequence[int]]) -> None:
        self.streams, self.rows = streams, rows
        self.waited_for = {before for row in rows for before in row[1:]}
        self.over: dict[int, torch.cuda.Event] = {-1: streams[0].record_event()}
        self.used, self.step = [0], -1

    def turn(self, step: int) -> int:
        """Come to a step, or behind all (-1): the address of its stream where that is another, or has waited; or 0."""
        if self.step in self.waited_for:
            self.over[self.step] = self.streams[self.rows[self.step][0]].record_event()
        before = self.rows[self.step][0] if self.step >= 0 else 0
        number, *waits = self.rows[step] if step >= 0 else [0]
        to = self.streams[number]
        events = [self.over[k] for k in waits]
        if number not in self.used:
            self.used.append(number)
            events.append(self.over[-1])
        if step < 0:
            events += [self.streams[k].record_event() for k in self.used[1:]]
        for event in events:
            to.wait_event(event)
        self.step = step
        if number == before and not events:
            return 0
        torch.cuda.set_stream(to)
        return int(to.cuda_stream)
