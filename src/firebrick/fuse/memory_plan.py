"""Where buffers live: one arena with reuse for temporaries, own tensors for results, and when the rest is freed."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Collection, Mapping

from firebrick.fuse.dependencies import extern_reads, extern_writes
from firebrick.fuse.inline import escaping
from firebrick.ir.index.expr import ONE, Expr
from firebrick.ir.kernels.schedule import Kernel, Launch, Place
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Buffer, Extern, LoopProgram, device_type
from firebrick.targets.base import Target

MemoryPlan = tuple[tuple[Place, ...], int, tuple[tuple[str, ...], ...]]
"""Places, bytes of the arena, and what is freed after each step."""


def plan_memory(
    program: LoopProgram, steps: list[Launch | Extern], kernels: tuple[Kernel, ...], targets: Mapping[str, Target]
) -> MemoryPlan:
    """Lay out all buffers; where a target does not share torch's memory, each by itself."""
    buffers = {b.name: b for b in program.buffers}
    first, last, calls = _lifetimes(steps, buffers)
    outside = escaping(program)
    places: list[Place] = []
    apart = {device for device, target in targets.items() if not target.shares_memory}
    inner = _arena_device(
        buffers, first, {*outside, *(n for n, b in buffers.items() if device_type(b.device) in apart)}
    )
    frees: list[list[str]] = [[] for _ in steps]
    arena: list[tuple[int, int, str]] = []
    for name, b in buffers.items():
        if b.kind in ("input", "const", "derived"):
            places.append(Place(name, "given"))
        elif name not in first:
            if name in outside:  # without elements, so that no step writes it
                places.append(Place(name, "fresh"))
        elif name in calls:
            places.append(Place(name, "call"))
            if name not in outside:
                frees[last[name]].append(name)
        elif name in outside or _nbytes(b) is None or b.device != inner:
            places.append(Place(name, "fresh"))
            if name not in outside:
                frees[last[name]].append(name)
        else:
            insort(arena, (first[name], last[name], name))
    alignment = max(target.fusion().alignment for target in targets.values())
    total = _Arena(places, alignment).lay(arena, buffers, _successors(steps, kernels, last))
    return tuple(places), total, tuple([tuple(f) for f in frees])


def _arena_device(buffers: dict[str, Buffer], first: dict[str, int], outside: Collection[str]) -> str:
    """The device that the arena lies on: of those that temporaries lie on, the one with the most."""
    many = Counter(b.device for name, b in buffers.items() if name in first and name not in outside)
    return max(many, key=many.__getitem__, default="cpu")


def _lifetimes(
    steps: list[Launch | Extern], buffers: dict[str, Buffer]
) -> tuple[dict[str, int], dict[str, int], set[str]]:
    """First and last step that touches each buffer, and the buffers that library calls make."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    calls: set[str] = set()
    for k, step in enumerate(steps):
        if isinstance(step, Extern):
            touched = [*extern_reads(step), *extern_writes(step)]
            if not step.into:
                calls.update(o for o in step.outs if o is not None)
        else:
            touched = list(step.args)
        for name in touched:
            if name in buffers:
                first.setdefault(name, k)
                last[name] = k
    return first, last, calls


def _successors(
    steps: list[Launch | Extern], kernels: tuple[Kernel, ...], last: dict[str, int]
) -> dict[str, list[str]]:
    """For buffers that kernels write, the buffers that die there and in whose place they may be written."""
    reuse = {k.name: k.reuse for k in kernels}
    successors: dict[str, list[str]] = {}
    for k, step in enumerate(steps):
        if isinstance(step, Launch):
            for out, source in reuse[step.kernel]:
                if last.get(step.args[source]) == k:
                    successors.setdefault(step.args[out], []).append(step.args[source])
    return successors


def _nbytes(b: Buffer) -> int | None:
    """Bytes that a buffer spans; None if that depends on symbolic sizes."""
    extent: Expr = ONE
    for size, stride in zip(b.shape, b.strides, strict=True):
        if size.terms or stride.terms:
            return None
        if size.const == 0:
            return 0
        extent = extent + (size.const - 1) * stride.const
    return extent.const * DTYPES[b.dtype].nbytes


class _Arena:
    """Offsets for buffers by lifetime, each put in the smallest gap that fits."""

    def __init__(self, places: list[Place], alignment: int) -> None:
        self.places, self.alignment = places, alignment

    def lay(
        self, wanted: list[tuple[int, int, str]], buffers: dict[str, Buffer], successors: dict[str, list[str]]
    ) -> int:
        """Place every buffer (first step, last step, name); returns the arena's size."""
        live: list[tuple[int, int, int, str]] = []  # offset, end, last step, buffer
        total = 0
        for begin, end, name in wanted:
            live = [x for x in live if x[2] >= begin]
            nbytes = _nbytes(buffers[name]) or 0
            size = max(1, -(-nbytes // self.alignment)) * self.alignment
            heir = next(
                (x for x in live if x[2] == begin and x[1] - x[0] == size and x[3] in successors.get(name, ())), None
            )
            if heir is not None:
                live.remove(heir)
                offset = heir[0]
            else:
                offset = self._fit(live, size, total)
            insort(live, (offset, offset + size, end, name))
            total = max(total, offset + size)
            self.places.append(Place(name, "arena", offset, nbytes))
        return total

    @staticmethod
    def _fit(live: list[tuple[int, int, int, str]], size: int, total: int) -> int:
        best: tuple[int, int] | None = None
        at = 0
        for offset, end, _, _ in live:
            gap = offset - at
            if gap >= size and (best is None or gap < best[0]):
                best = gap, at
            at = max(at, end)
        if best is None or (total - at >= size and total - at < best[0]):
            return at
        return best[1]
