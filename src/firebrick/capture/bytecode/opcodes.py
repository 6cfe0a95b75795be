"""The opcodes of the running CPython, as `dis` describes them: what an operand means, what happens to the stack."""

from __future__ import annotations

import dis
import opcode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from firebrick.capture.bytecode.cpython import HAS_METHOD_FLAG


class Operand(Enum):
    """What an instruction's operand means."""

    NONE = "none"
    NUMBER = "number"  # a count, a depth in the stack, or bits
    CONST = "const"  # index into the constants
    NAME = "name"  # index into the names
    NAME_FLAG = "name+1"  # name index above one flag bit
    NAME_FLAGS = "name+2"  # name index above two flag bits
    LOCAL = "local"  # slot of a local variable, cell or free variable, taken as it is
    LOCAL_PAIR = "local pair"  # two slots of four bits
    CELL = "cell"  # slot of a cell or free variable
    JUMP = "jump"  # code units to the target
    COMPARE = "compare"  # index into COMPARE_SYMBOLS, above version.COMPARE_SHIFT bits
    BINARY = "binary"  # index into BINARY_SYMBOLS


@dataclass(frozen=True, slots=True)
class Opcode:
    """An opcode; falls_through: whether control can go on with the next instruction."""

    name: str
    number: int
    operand: Operand
    falls_through: bool

    def stack_effect(self, arg: int, *, jump: bool = False) -> int:
        """Change of the stack's depth for operand `arg`, with the jump taken or not."""
        return dis.stack_effect(self.number, None if self.operand is Operand.NONE else arg, jump=jump)


PAIRS: Mapping[str, tuple[str, str]] = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
"""Instruction on two slots -> the two instructions that it stands for."""

_BY_NAME: Mapping[str, Operand] = {
    **dict.fromkeys(PAIRS, Operand.LOCAL_PAIR),
    "BINARY_OP": Operand.BINARY,
    "LOAD_CLOSURE": Operand.CELL,
    "LOAD_GLOBAL": Operand.NAME_FLAG,
    "LOAD_ATTR": Operand.NAME_FLAG if HAS_METHOD_FLAG else Operand.NAME,
    **dict.fromkeys(("LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"), Operand.NAME_FLAGS),
    **dict.fromkeys(("LOAD_ZERO_SUPER_ATTR", "LOAD_ZERO_SUPER_METHOD"), Operand.NAME_FLAGS),
}
"""Operands of which `dis` does not tell all."""

_KINDS = (
    (dis.hasconst, Operand.CONST),
    (dis.hasname, Operand.NAME),
    (dis.haslocal, Operand.LOCAL),
    (dis.hasfree, Operand.CELL),
    (dis.hasjrel, Operand.JUMP),
    (dis.hascompare, Operand.COMPARE),
)
_TAKES_NUMBER = frozenset(getattr(dis, "hasarg", range(dis.HAVE_ARGUMENT, 256)))

_ENDS = frozenset(
    {
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "INTERPRETER_EXIT"),
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"),
    }
)
"""Instructions after which control never goes on with the next one."""


def _operand(name: str, number: int) -> Operand:
    if name in _BY_NAME:
        return _BY_NAME[name]
    operand = next((kind for numbers, kind in _KINDS if number in numbers), None)
    return operand or (Operand.NUMBER if number in _TAKES_NUMBER else Operand.NONE)


BY_NAME: Mapping[str, Opcode] = {n: Opcode(n, k, _operand(n, k), n not in _ENDS) for n, k in dis.opmap.items()}
"""Name -> opcode, those that only the compiler uses too."""

BY_NUMBER: Mapping[int, Opcode] = {row.number: row for row in BY_NAME.values()}
"""Number -> opcode."""

_tables: Any = opcode

BINARY_SYMBOLS: tuple[str, ...] = tuple(symbol for _, symbol in _tables._nb_ops)
"""BINARY_OP's operand -> operator in the user's code, `+=` for the one in place."""

COMPARE_SYMBOLS = tuple(dis.cmp_op)
"""COMPARE_OP's operand, without its lower bits -> symbol."""

INTRINSICS_1: tuple[str, ...] = tuple(getattr(opcode, "_intrinsic_1_descs", ()))
"""CALL_INTRINSIC_1's operand -> name."""

INTRINSICS_2: tuple[str, ...] = tuple(getattr(opcode, "_intrinsic_2_descs", ()))
"""CALL_INTRINSIC_2's operand -> name."""
