"""The text form of schedules, for people."""

from __future__ import annotations

from firebrick.fuse.dependencies import extern_reads, extern_writes
from firebrick.ir.kernels.schedule import Kernel, Launch, Schedule
from firebrick.ir.kernels.tree import loop_sizes
from firebrick.ir.loops.program import Extern


def show(schedule: Schedule) -> str:
    """One line a step, then memory, then why neighbours were left apart."""
    kernels = {k.name: k for k in schedule.kernels}
    rows = []
    step_of: dict[str, int] = {}
    for k, step in enumerate(schedule.steps):
        if isinstance(step, Extern):
            step_of[step.name] = k
            rows.append((f"k{k} extern {step.op}", extern_reads(step), extern_writes(step)))
        else:
            step_of.update((n, k) for n in step.nodes)
            rows.append((_launch(k, step, kernels[step.kernel]), *_buffers(step, kernels[step.kernel])))
    width = max((len(head) for head, _, _ in rows), default=0)
    lines = [f"schedule {schedule.program.name}"]
    for head, reads, writes in rows:
        lines.append(f"  {head:<{width}}  reads {', '.join(reads) or '-'}  writes {', '.join(writes) or '-'}")
    lines.append(f"  arena {schedule.arena_bytes} bytes")
    for r in schedule.refusals:
        if r.first in step_of and r.second in step_of and step_of[r.first] != step_of[r.second]:
            lines.append(f"  apart k{step_of[r.first]} k{step_of[r.second]}: {r.reason}")
    return "\n".join(lines) + "\n"


def _launch(place: int, step: Launch, kernel: Kernel) -> str:
    nodes = f"{step.nodes[0]}..{step.nodes[-1]}" if len(step.nodes) > 3 else " ".join(step.nodes)
    return f"k{place} nest {nodes} {loop_sizes(kernel.loops)} by {kernel.name}"


def _buffers(step: Launch, kernel: Kernel) -> tuple[list[str], list[str]]:
    reads = [a for a, p in zip(step.args, kernel.params, strict=True) if not p.written]
    return reads, [a for a, p in zip(step.args, kernel.params, strict=True) if p.written]
