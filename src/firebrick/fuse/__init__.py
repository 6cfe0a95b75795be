"""Stage: which loops run together, in which order, and where their results live."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from firebrick.config import Config
from firebrick.fuse.copy_elimination import forward_copies, update_in_place
from firebrick.fuse.dependencies import analyze, dependencies
from firebrick.fuse.fusion import fuse_nodes
from firebrick.fuse.inline import drop_dead, escaping, inline
from firebrick.fuse.kernels import KernelSet
from firebrick.fuse.memory_plan import plan_memory
from firebrick.fuse.parts import part_by_part
from firebrick.fuse.schedule_text import show
from firebrick.fuse.unroll import unroll
from firebrick.ir.graph.equal_layers import Repeat
from firebrick.ir.kernels.schedule import Launch, Schedule
from firebrick.ir.loops.program import Extern, LoopProgram
from firebrick.ir.loops.values import Table
from firebrick.targets.base import Target

__all__ = ["schedule", "show"]


def schedule(
    program: LoopProgram, targets: Mapping[str, Target], config: Config, repeat: Repeat | None = None, tune: Any = None
) -> Schedule:
    """Order, fuse and place the work of a program.

    Args:
        program: what lowering made.
        targets: the machine of each type of device that the program has loops for.
        config: `fuse` off leaves every nest a kernel of its own.
        repeat: stretches of the graph that the program leaves out; the schedule has them.
        tune: measures what targets have several forms for.

    Raises:
        LoweringError: loops touch memory of several devices, or of one that has no target.
        NotAlike: the program does not show what the stretches left out are like.
    """
    facts = Table()
    if config.fuse:
        program = update_in_place(forward_copies(program))
    nodes = drop_dead(program, list(program.nodes))
    if config.fuse:
        nodes = drop_dead(program, inline(program, nodes, facts))
        if repeat is None:
            nodes = part_by_part(nodes)
    accesses = analyze(nodes)
    buffers = {b.name: b for b in program.buffers}
    devices = {n: b.device for n, b in buffers.items()}
    groups, refusals = fuse_nodes(accesses, dependencies(accesses), devices, targets, config)
    kernels = KernelSet(facts, targets, devices)
    outside = escaping(program)
    users = Counter(b for g in groups for b in g.uses)
    steps: list[Launch | Extern] = []
    for g in groups:
        if not g.members:
            node = g.nodes[0].node
            assert isinstance(node, Extern)
            steps.append(kernels.call(node, buffers))
            continue
        live = {b for b in g.makes if b in outside or users[b] > (b in g.uses)}
        steps += kernels.launches(g, live)
    if kernels.scratchpads:
        program = replace(program, buffers=(*program.buffers, *kernels.scratchpads))
    if repeat is not None:
        program, steps = unroll(program, steps, kernels.kernels(), repeat)
    kernels.program, kernels.scratchpads = program, []
    for device, target in targets.items() if config.fuse else ():
        steps = target.side_by_side(steps, kernels, device, tune)
    program = replace(program, buffers=(*program.buffers, *kernels.scratchpads))
    called = {step.kernel for step in steps if isinstance(step, Launch)}
    launched = tuple([k for k in kernels.kernels() if k.name in called])
    places, arena, frees = plan_memory(program, steps, launched, targets)
    return Schedule(program, launched, tuple(steps), places, arena, frees, refusals)
