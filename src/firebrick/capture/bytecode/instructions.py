"""Code objects read into instructions with resolved operands, jump targets, positions and exception handlers."""

from __future__ import annotations

import dis
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any, Generic, TypeVar

from firebrick.capture.bytecode.code_tables import Position
from firebrick.capture.bytecode.cpython import CACHES, COMPARE_SHIFT
from firebrick.capture.bytecode.opcodes import BINARY_SYMBOLS, BY_NUMBER, COMPARE_SYMBOLS, PAIRS, Opcode, Operand

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ExceptionEntry:
    """Handler of a range of instructions: where it starts, how deep its stack is, whether the place is pushed."""

    target: int
    depth: int
    lasti: bool


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction; EXTENDED_ARG is merged in and inline caches are left out.

    `argval` is the operand's meaning: a constant, a name, a comparison or operator in the user's spelling, the index
    of a jump's target, or the bare operand. `flag` holds the bits beside a name or comparison.
    """

    index: int
    offset: int
    opname: str
    arg: int
    argval: Any
    flag: int
    is_jump: bool
    row: Opcode
    position: Position
    handler: ExceptionEntry | None

    @property
    def parts(self) -> list[tuple[str, Any]]:
        """It, or the two instructions on one slot that it stands for, with their operands."""
        if self.row.operand is not Operand.LOCAL_PAIR:
            return [(self.opname, self.argval)]
        return list(zip(PAIRS[self.opname], self.argval, strict=True))

    @property
    def line(self) -> int:
        """Line in the user's file from 1; 0 unknown."""
        return self.position[0] or 0

    @property
    def column(self) -> int:
        """Column from 1; 0 unknown."""
        column = self.position[2]
        return 0 if column is None else column + 1

    def __repr__(self) -> str:
        return f"{self.index} {self.opname} {self.argval!r}" if self.row.operand is not Operand.NONE else self.opname


class ByCode(Generic[T]):
    """A cache by identity of code objects, which compare by content; entries go with their code object."""

    def __init__(self, make: Callable[[CodeType], T]) -> None:
        self._make = make
        self._entries: dict[int, tuple[weakref.ref[CodeType], T]] = {}

    def __call__(self, code: CodeType) -> T:
        """What was made for this very code object."""
        key = id(code)
        entry = self._entries.get(key)
        if entry is not None and entry[0]() is code:
            return entry[1]
        content = self._make(code)
        entries = self._entries

        def forget(dead: weakref.ref[CodeType]) -> None:
            if key in entries and entries[key][0] is dead:
                del entries[key]

        entries[key] = (weakref.ref(code, forget), content)
        return content


def slot_names(code: CodeType) -> tuple[str, ...]:
    """Names of a frame's slots in order: locals, cells that aren't locals too, free variables."""
    return code.co_varnames + tuple(c for c in code.co_cellvars if c not in code.co_varnames) + code.co_freevars


def _decode(code: CodeType) -> tuple[Instruction, ...]:
    read = _Reader(code)
    raw = code.co_code
    positions: list[Position] = list(code.co_positions())
    instructions: list[Instruction] = []
    at_offset: dict[int, int] = {}
    unit, extended, first, units = 0, 0, -1, len(raw) >> 1
    while unit < units:
        number = raw[unit << 1]
        row = BY_NUMBER[number]
        arg = extended << 8 | raw[(unit << 1) + 1]
        if first < 0:
            first = unit
        here, unit = unit, unit + 1 + CACHES[number]
        if row.name == "EXTENDED_ARG":
            extended = arg
            continue
        extended = 0
        index = len(instructions)
        at_offset[first] = index
        first = -1
        is_jump = row.operand is Operand.JUMP
        name = row.name
        if is_jump:
            argval: Any = unit - arg if "BACKWARD" in name else unit + arg
            flag = 0
        else:
            argval, flag = read.operand(row, arg)
            if name == "LOAD_FAST" and arg >= read.locals:  # since 3.13 also loads a cell itself
                name = "LOAD_CLOSURE"
        instructions.append(Instruction(index, here << 1, name, arg, argval, flag, is_jump, row, positions[here], None))
    for instruction in instructions:
        if instruction.is_jump:
            instruction.argval = at_offset[instruction.argval]
    table: Any = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    for start, end, target, depth, lasti in table:  # offsets are those of bytes
        entry = ExceptionEntry(at_offset[target >> 1], depth, lasti)
        last = at_offset.get(end >> 1, len(instructions))
        for instruction in instructions[at_offset[start >> 1] : last]:
            instruction.handler = entry
    return tuple(instructions)


class _Reader:
    """Meanings of the operands of one code object."""

    def __init__(self, code: CodeType) -> None:
        self.names, self.consts = code.co_names, code.co_consts
        self.slots, self.locals = slot_names(code), code.co_nlocals

    def operand(self, row: Opcode, arg: int) -> tuple[Any, int]:
        """What an operand means, and the bits beside it."""
        meaning = _MEANINGS.get(row.operand)
        return (arg, 0) if meaning is None else meaning(self, arg)


_MEANINGS: Mapping[Operand, Callable[[_Reader, int], tuple[Any, int]]] = {
    **dict.fromkeys((Operand.LOCAL, Operand.CELL), lambda read, arg: (read.slots[arg], 0)),
    Operand.CONST: lambda read, arg: (read.consts[arg], 0),
    Operand.NAME: lambda read, arg: (read.names[arg], 0),
    Operand.NAME_FLAG: lambda read, arg: (read.names[arg >> 1], arg & 1),
    Operand.NAME_FLAGS: lambda read, arg: (read.names[arg >> 2], arg & 3),
    Operand.LOCAL_PAIR: lambda read, arg: ((read.slots[arg >> 4], read.slots[arg & 15]), 0),
    Operand.COMPARE: lambda read, arg: (COMPARE_SYMBOLS[arg >> COMPARE_SHIFT], arg & 16 if COMPARE_SHIFT == 5 else 0),
    Operand.BINARY: lambda read, arg: (BINARY_SYMBOLS[arg], 0),
}

decode = ByCode(_decode)
"""Instructions of a code object; made once."""
