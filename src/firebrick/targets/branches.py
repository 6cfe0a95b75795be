"""Which steps of a program may run side by side, on several streams of a machine, by what they read and write."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_STREAMS, _CROSSING, _PART = 4, 0.5, 0.9
"""Most streams; what a step waits longer for one of another stream, in steps; the part of the time of all steps one
after another from which on no others are made."""


def branches_of(steps: Sequence[Sequence[set[str]]]) -> list[list[int]]:
    """For each step the number of its stream, then the steps of other streams that it waits for; nothing where that
    would gain little. What a step reads and what it writes are names of memory that no other name is of.

    A step goes where it may begin first, as if all took as long. Streams keep the order of the program.
    """
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    rows, over, seen = list[list[int]](), list[float](), list[list[int]]()  # seen: last steps that were over, by stream
    free, last = [0.0] * _STREAMS, [[-1] * _STREAMS] * _STREAMS
    for k, (reads, writes) in enumerate(steps):
        needs = {writer[n] for n in reads | writes if n in writer} | {j for n in writes for j in readers.get(n, ())}
        begins = [max([free[s], *[over[j] + _CROSSING * (rows[j][0] != s) for j in needs]]) for s in range(_STREAMS)]
        stream = begins.index(min(begins))
        now, row = last[stream], [stream]
        for j in sorted(needs, reverse=True):
            if now[rows[j][0]] < j:
                row.append(j)
                now = [*map(max, now, seen[j])]
        now = [k if s == stream else n for s, n in enumerate(now)]
        for n in reads:
            readers.setdefault(n, []).append(k)
        for n in writes:
            writer[n], readers[n] = k, []
        free[stream], last[stream] = begins[stream] + 1, now
        rows.append(row)
        over.append(free[stream])
        seen.append(now)
    return rows if rows and max(free) <= _PART * len(rows) else []
