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
        """Come to a step, or behind all (-1): the address of its stream where that is another or waits, else 0."""
        now, number = self.rows[self.step][0] if self.step >= 0 else 0, self.rows[step][0] if step >= 0 else 0
        if self.step in self.waited_for:
            self.over[self.step] = self.streams[now].record_event()
        events = [self.over[k] for k in self.rows[step][1:]] if step >= 0 else []
        if number not in self.used:
            self.used.append(number)
            events.append(self.over[-1])
        if step < 0:
            events += [self.streams[k].record_event() for k in self.used[1:]]
        for event in events:
            self.streams[number].wait_event(event)
        self.step = step
        torch.cuda.set_stream(self.streams[number])
        return int(self.streams[number].cuda_stream) if events or number != now else 0
