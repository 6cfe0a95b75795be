"""Which steps of a schedule may run side by side, on several streams of a GPU, by what they read and write."""

from __future__ import annotations

from firebrick.ir.kernels.schedule import Launch, Schedule, args_in
from firebrick.ir.loops.program import device_type

_STREAMS, _CROSSING, _PART = 4, 0.5, 0.9
"""Most streams; what a step waits longer for one of another stream, in steps; the part of the time of all steps one
after another from which on no others are made."""


def branches_of(schedule: Schedule) -> list[list[int]]:
    """For each step what `streams_of` says; nothing for programs that are not of a GPU alone."""
    kernels, touched = {k.name: k for k in schedule.kernels}, list[list[set[str]]]()
    for s in schedule.steps:
        if isinstance(s, Launch):
            device, pairs = kernels[s.kernel].device, list(zip(s.args, kernels[s.kernel].params, strict=True))
            touched.append([{a for a, p in pairs if p.written == written} for written in (False, True)])
        else:
            device = device_type(s.device)
            touched.append([{*args_in(s)}, {n for n in (*s.outs, *s.writes) if n is not None}])
        if device != "cuda":
            return []
    # What the caller gives may overlap, which counts where some of it is written.
    outside = {b.name for b in schedule.program.buffers if b.kind in ("input", "const", "derived")}
    shared = outside if any(outside & writes for _, writes in touched) else set[str]()
    return streams_of([[{"" if n in shared else n for n in names} for names in both] for both in touched])


def streams_of(steps: list[list[set[str]]]) -> list[list[int]]:
    """For each step, of names that it reads and that it writes, the number of its stream and steps of others that it
    waits for; nothing where that gains little. It goes where it may begin first, as if all took as long, in order."""
    writer, readers = dict[str, int](), dict[str, list[int]]()
    rows, over, free = list[list[int]](), list[float](), [0.0] * _STREAMS
    waited: dict[tuple[int, int], int] = {}  # a stream, and the last step of another one that it has waited for
    for k, (reads, writes) in enumerate(steps):
        needs = {writer[n] for n in reads | writes if n in writer} | {j for n in writes for j in readers.get(n, ())}
        begins = [max([free[s], *[over[j] + _CROSSING * (rows[j][0] != s) for j in needs]]) for s in range(_STREAMS)]
        stream = begins.index(min(begins))
        latest = {rows[j][0]: j for j in sorted(needs)}
        waits = {(stream, s): j for s, j in latest.items() if s != stream and j > waited.get((stream, s), -1)}
        waited |= waits
        for n in reads:
            readers.setdefault(n, []).append(k)
        for n in writes:
            writer[n], readers[n] = k, []
        free[stream] = begins[stream] + 1
        rows.append([stream, *waits.values()])
        over.append(free[stream])
    return rows if rows and max(free) <= _PART * len(rows) else []
