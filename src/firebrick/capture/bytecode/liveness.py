"""Which locals may be read after a place before they are written again."""

from __future__ import annotations

from types import CodeType

from firebrick.capture.bytecode.control_flow import flow
from firebrick.capture.bytecode.instructions import ByCode, Instruction
from firebrick.capture.bytecode.opcodes import Operand


def _uses(i: Instruction, slots: dict[str, int]) -> tuple[int, int]:
    """Slots that an instruction reads, and those that it writes without reading."""
    read = written = 0
    for op, name in i.parts if i.row.operand in (Operand.LOCAL, Operand.LOCAL_PAIR, Operand.CELL) else ():
        if op == "STORE_FAST":
            written |= slots[name]
        else:
            read |= slots[name] & ~written
    return read, written


def _live(code: CodeType) -> list[int]:
    graph = flow(code)
    instructions = graph.instructions
    uses = [_uses(i, graph.slots) for i in instructions]
    live = [0] * len(instructions)
    work = list(range(len(instructions)))
    queued = [True] * len(instructions)
    while work:
        index = work.pop()
        queued[index] = False
        i = instructions[index]
        after = 0
        if i.row.falls_through:
            after = live[index + 1]
        if i.is_jump:
            after |= live[i.argval]
        read, written = uses[index]
        now = read | after & ~written
        if i.handler is not None:  # may be left before anything was written
            now |= live[i.handler.target]
        if now != live[index]:
            live[index] = now
            for j in graph.predecessors[index]:
                if not queued[j]:
                    queued[j] = True
                    work.append(j)
    return live


live_slots = ByCode(_live)
"""Bits of `flow.slots` that are live before each instruction."""


def live_names(code: CodeType, index: int) -> frozenset[str]:
    """Names of locals and cells that instruction `index` or a later one may read before they are written."""
    live = live_slots(code)[index]
    return frozenset(name for name, bit in flow(code).slots.items() if live & bit)
