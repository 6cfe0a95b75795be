"""Small launches of one kernel side by side: an optimizer's parameters, casts of gradients, statistics of batches.

A launch waits until a step meets what it reads or writes, or until sixteen of its kernel wait; those become one, each
with its share of the programs. Launches that fill the card anyway stay alone: they would only hold memory longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from firebrick.ir.kernels.groups import PlannedLaunch
from firebrick.ir.kernels.schedule import Kernel, Launch, Schedule, names_in
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Buffer, Extern
from firebrick.targets.base import KernelTable
from firebrick.targets.cuda.facts import CardFacts
from firebrick.targets.cuda.launches import beside
from firebrick.targets.cuda.tile import Body

Touched = tuple[set[str], set[str]]

_MOST = 16
"""Launches that become one: more would make its code, of as many copies, longer than it saves."""
_MOST_ARGUMENTS = 160
_HELD = 2 / 3
"""Of the level 2 cache, the bytes of temporaries that waiting launches may keep alive, as casts keep gradients in 16
bits: what it may still have when they run."""
_FILLS = 40
"""Programs for each multiprocessor from which a launch keeps the card busy well beyond its own start: 16 run at once,
so these are two and a half rounds, of which the last one's idle half counts a fifth."""


def side_by_side(
    steps: Sequence[Launch | Extern], table: KernelTable, card: CardFacts, device: str
) -> list[Launch | Extern]:
    """The steps, with launches that may run together as one."""
    kernels, sizes = {k.name: k for k in table.kernels()}, {b.name: _nbytes(b) for b in table.program.buffers}
    last = {name: k for k, step in enumerate(steps) for name in names_in(step)}
    waiting: dict[str, list[Launch]] = {}
    batch: dict[str, Touched] = {}
    alive: dict[str, int] = {}
    out: list[Launch | Extern] = []

    def close(name: str) -> None:
        del batch[name], alive[name]
        out.extend(_merged(waiting.pop(name), kernels[name], table))

    for k, step in enumerate(steps):
        reads, writes = touched(step, kernels)
        for name in [n for n, (r, w) in batch.items() if not (w.isdisjoint(reads | writes) and r.isdisjoint(writes))]:
            close(name)
        if not isinstance(step, Launch) or not _is_small(step, kernels.get(step.kernel), card, device):
            out.append(step)
            continue
        waiting.setdefault(step.kernel, []).append(step)
        r, w = batch.setdefault(step.kernel, (set(), set()))
        r |= reads
        w |= writes
        alive[step.kernel] = alive.get(step.kernel, 0) + sum(sizes.get(n, 0) for n in reads if last[n] == k)
        if len(waiting[step.kernel]) == min(_MOST, _MOST_ARGUMENTS // len(step.args)):
            close(step.kernel)
        while sum(alive.values()) > _HELD * card.level2:
            close(max(alive, key=alive.__getitem__))
    for name in list(waiting):
        close(name)
    return out


def _nbytes(b: Buffer) -> int:
    """Of a temporary of known size; 0 of what others keep alive."""
    fixed = b.kind == "temp" and all(n.is_const for n in b.shape)
    return math.prod([n.const for n in b.shape]) * DTYPES[b.dtype].nbytes if fixed else 0


def _is_small(step: Launch, kernel: Kernel | None, card: CardFacts, device: str) -> bool:
    if kernel is None or kernel.device != device or not isinstance(kernel.body, Body) or step.sizes:
        return False
    (programs,) = step.grid
    rows = any(part.inner for part in kernel.body.parts)
    small = programs.is_const and programs.const < _FILLS * card.multiprocessors
    return small and not rows and len(step.args) <= _MOST_ARGUMENTS // 2


def touched(step: Launch | Extern, kernels: Mapping[str, Kernel]) -> Touched:
    """What a step reads and what it writes; a library call may write all that it is given."""
    if isinstance(step, Launch):
        pairs = list(zip(step.args, kernels[step.kernel].params, strict=True))
        return {a for a, p in pairs if not p.written}, {a for a, p in pairs if p.written}
    return set(), {*names_in(step)}


def steady_params(schedule: Schedule) -> dict[str, frozenset[str]]:
    """Kernel -> its parameters that in each launch are weights, which no step writes; others' kernels write none."""
    kernels = {k.name: k for k in schedule.kernels}
    steps = [s for s in schedule.steps if isinstance(s, Extern) or s.kernel in kernels]
    steady = {b.name for b in schedule.program.buffers if b.kind in ("const", "derived")}
    for step in steps:
        steady -= touched(step, kernels)[1] if isinstance(step, Launch) else {*step.outs, *step.writes}  # type: ignore
    steady_of = {k.name: frozenset(p.name for p in k.params) for k in schedule.kernels}
    for step in steps:
        if isinstance(step, Launch):
            pairs = zip(kernels[step.kernel].params, step.args, strict=True)
            steady_of[step.kernel] &= {p.name for p, a in pairs if a in steady and not p.number}
    return steady_of


def _merged(launches: list[Launch], kernel: Kernel, table: KernelTable) -> Iterable[Launch]:
    """Launches of one kernel as few: of sixteen, eight, four or two, so that few kernels are new."""
    while launches:
        count = 1 << len(launches).bit_length() - 1
        now, launches = launches[:count], launches[count:]
        if count == 1:
            yield now[0]
            continue
        same = "map", kernel.params, kernel.body
        one = beside([PlannedLaunch(*same, s.args, s.sizes, s.grid, s.attributes) for s in now])
        nodes = tuple(dict.fromkeys(n for s in now for n in s.nodes))
        parts = tuple(dict.fromkeys(n for s in now for n in s.parts))
        name, origin = table.add(one, kernel.device), ", ".join(dict.fromkeys(s.origin for s in now if s.origin))
        yield Launch(name, one.args, one.sizes, nodes, origin, parts, one.grid, one.attributes)
