"""The only place of capture that asks which CPython runs: every difference between versions is a named fact here."""

from __future__ import annotations

import dis
import opcode
import sys
from typing import Any

SUPPORTED = ((3, 11), (3, 12), (3, 13))
"""Versions whose bytecode capture knows."""

OLDEST, VERSION = SUPPORTED[0], sys.version_info[:2]

HAS_PRECALL = VERSION < (3, 12)
"""A call is PRECALL, CALL; methods are loaded by LOAD_METHOD."""

HAS_CHECKED_LOADS = VERSION >= (3, 12)
"""LOAD_FAST trusts that its local is bound; LOAD_FAST_CHECK looks."""

NOTES_SET_NAME = VERSION >= (3, 12)
"""What `__set_name__` raises gets a note; before, it is the cause of a RuntimeError."""

HAS_DIRECTED_JUMPS = VERSION < (3, 12)
"""Conditional jumps name their direction (POP_JUMP_FORWARD_IF_TRUE); later ones only go forward."""

GENERATORS_START_DEEP = VERSION < (3, 13)
"""The item that a generator finds on its stack at the start is not counted by RETURN_GENERATOR."""

HAS_METHOD_FLAG = VERSION >= (3, 12)
"""LOAD_ATTR's lowest bit asks for a method; `super().attr` is one instruction."""

HAS_CALL_KW = VERSION >= (3, 13)
"""Keyword names of a call are on the stack (CALL_KW); before, KW_NAMES precedes CALL."""

HAS_FUNCTION_ATTRIBUTES = VERSION >= (3, 13)
"""MAKE_FUNCTION takes code alone, SET_FUNCTION_ATTRIBUTE adds closure and defaults."""


NULL_BEFORE_CALLABLE = VERSION < (3, 13)
"""A plain call's stack is NULL, callable, arguments; since 3.13 it is callable, NULL, arguments."""

LOOP_END = {(3, 11): 0, (3, 12): 1}.get(VERSION, 2)
"""Instructions at FOR_ITER's target that a finished loop jumps over: END_FOR, and the POP_TOP behind it."""

SEND_KEEPS_RECEIVER = VERSION >= (3, 12)
"""What SEND delegates to stays below the result, for END_SEND."""

COMPARE_SHIFT = {(3, 11): 0, (3, 12): 4}.get(VERSION, 5)
"""Bits below the operator in COMPARE_OP's operand."""


_PROBES = {s: dis.Bytecode(f"a {s} b") for s in ("<", "<=", "==", "!=", ">", ">=")}

COMPARE_ARGS = {s: i.arg or 0 for s, code in _PROBES.items() for i in code if i.opname == "COMPARE_OP"}
"""Operator -> COMPARE_OP's whole operand, its hints for the specializer included."""


def _caches() -> tuple[int, ...]:
    # Counts of inline cache entries have no public name; a list by number until 3.12, then a dict by name.
    entries: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]
    if isinstance(entries, dict):
        return tuple(entries.get(name, 0) for name in dis.opname[:256])
    return tuple(entries)


CACHES = _caches()
"""Opcode number -> inline cache code units that follow the instruction."""
