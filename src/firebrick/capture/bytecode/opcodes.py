"""Every opcode of CPython 3.11, 3.12 and 3.13: one row each, with the versions that have it.

A name has several rows where its operand or its effect on the stack differs between versions; their ranges are
disjoint. `TABLE` holds all rows, `BY_NAME` and `BY_NUMBER` those of the running version.
"""

from __future__ import annotations

import dis
import operator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from firebrick.capture.bytecode.cpython import OLDEST, SUPPORTED, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Effect = int | Callable[[int], int]


class Operand(Enum):
    """What an instruction's operand means."""

    NONE = "none"
    IGNORED = "ignored"  # present, without meaning for the program
    COUNT = "count"  # of stack items, or a depth in the stack
    FLAGS = "flags"  # bits, explained by the row
    CONST = "const"  # index into the constants
    NAME = "name"  # index into the names
    NAME_FLAG = "name+1"  # name index above one flag bit
    NAME_FLAGS = "name+2"  # name index above two flag bits
    LOCAL = "local"  # slot of a local variable, cell or free variable, taken as it is
    LOCAL_PAIR = "local pair"  # two slots of four bits
    CELL = "cell"  # slot of a cell or free variable
    JUMP = "jump"  # code units to the target
    COMPARE = "compare"  # index into COMPARE_OPERATORS, above version.COMPARE_SHIFT bits
    BINARY = "binary"  # index into BINARY_OPERATORS
    INTRINSIC_1 = "intrinsic 1"  # index into INTRINSICS_1
    INTRINSIC_2 = "intrinsic 2"  # index into INTRINSICS_2


class Jump(Enum):
    """Where control goes after an instruction."""

    NEXT = "next"
    FORWARD = "forward"  # always to a later target
    BACKWARD = "backward"  # always to an earlier target
    FORWARD_IF = "forward if"  # to a later target or the next instruction
    BACKWARD_IF = "backward if"
    LEAVE = "leave"  # out of the frame, or to an exception handler
    ANY = "any"  # pseudo instructions, before the direction is known


class Category(Enum):
    """What kind of work an instruction does; the interpreter is organised by it."""

    STACK = "stack"
    LOAD = "load"
    STORE = "store"
    DELETE = "delete"
    UNARY = "unary"
    BINARY = "binary"
    BUILD = "build"
    UNPACK = "unpack"
    CALL = "call"
    FUNCTION = "function"
    JUMP = "jump"
    LOOP = "loop"
    RETURN = "return"
    EXCEPTION = "exception"
    WITH = "with"
    MATCH = "match"
    FORMAT = "format"
    IMPORT = "import"
    CLASS = "class"
    INTRINSIC = "intrinsic"
    GENERATOR = "generator"
    ASYNC = "async"
    INTERNAL = "internal"
    PSEUDO = "pseudo"  # known to the compiler, never in a code object
    INSTRUMENTED = "instrumented"  # put in place by sys.monitoring, never in `co_code`


@dataclass(frozen=True, slots=True)
class Opcode:
    """One row of the table; `effect` is the change of the stack's depth, as a number or a function of the operand."""

    name: str
    operand: Operand
    effect: Effect
    category: Category
    meaning: str
    first: tuple[int, int] = OLDEST
    last: tuple[int, int] = SUPPORTED[-1]
    jump: Jump = Jump.NEXT
    jump_effect: Effect | None = None  # where it differs when the jump is taken

    def stack_effect(self, arg: int, *, jump: bool = False) -> int:
        """Change of the stack's depth for operand `arg`, with the jump taken or not."""
        effect = self.jump_effect if jump and self.jump_effect is not None else self.effect
        return effect if isinstance(effect, int) else effect(arg)

    @property
    def falls_through(self) -> bool:
        """Whether control can go on with the next instruction."""
        return self.jump not in (Jump.FORWARD, Jump.BACKWARD, Jump.LEAVE)

    @property
    def number(self) -> int:
        """The running version's number."""
        return dis.opmap[self.name]


_V11, _V12, _V13 = SUPPORTED
_NONE, _IGNORED, _COUNT, _FLAGS = Operand.NONE, Operand.IGNORED, Operand.COUNT, Operand.FLAGS
_CONST, _NAME, _LOCAL, _CELL, _JUMP = Operand.CONST, Operand.NAME, Operand.LOCAL, Operand.CELL, Operand.JUMP
_NAME1, _NAME2, _PAIR = Operand.NAME_FLAG, Operand.NAME_FLAGS, Operand.LOCAL_PAIR
_C = Category
_O = Opcode
_FWD, _BACK, _IF, _BACK_IF, _LEAVE = Jump.FORWARD, Jump.BACKWARD, Jump.FORWARD_IF, Jump.BACKWARD_IF, Jump.LEAVE


def _pushed_by_unpack_ex(n: int) -> int:
    return (n & 0xFF) + (n >> 8)


def _popped_attributes(n: int) -> int:
    return -(n & 15).bit_count()


TABLE: tuple[Opcode, ...] = (
    # The stack
    _O("NOP", _NONE, 0, _C.STACK, "nothing; keeps a line for tracing"),
    _O("POP_TOP", _NONE, -1, _C.STACK, "drop the top"),
    _O("PUSH_NULL", _NONE, 1, _C.STACK, "push NULL, the mark of a call without a receiver"),
    _O("COPY", _COUNT, 1, _C.STACK, "push the item n deep (1 is the top)"),
    _O("SWAP", _COUNT, 0, _C.STACK, "exchange the top and the item n deep"),
    _O("END_FOR", _NONE, -2, _C.LOOP, "end of a for loop; FOR_ITER jumps over it", _V12, _V12),
    _O("END_FOR", _NONE, -1, _C.LOOP, "end of a for loop; FOR_ITER jumps over it and the POP_TOP after", _V13),
    # Names
    _O("LOAD_CONST", _CONST, 1, _C.LOAD, "push a constant"),
    _O("LOAD_FAST", _LOCAL, 1, _C.LOAD, "push a local that is known to be bound, or a cell itself"),
    _O("LOAD_FAST_CHECK", _LOCAL, 1, _C.LOAD, "push a local, UnboundLocalError if unbound", _V12),
    _O("LOAD_FAST_AND_CLEAR", _LOCAL, 1, _C.LOAD, "push a local (or NULL) and unbind it", _V12),
    _O("LOAD_FAST_LOAD_FAST", _PAIR, 2, _C.LOAD, "push two locals", _V13),
    _O("LOAD_CLOSURE", _CELL, 1, _C.LOAD, "push a cell itself", last=_V12),
    _O("LOAD_DEREF", _CELL, 1, _C.LOAD, "push what a cell holds"),
    _O("LOAD_CLASSDEREF", _CELL, 1, _C.CLASS, "push from the class namespace, else from a cell", last=_V11),
    _O("LOAD_FROM_DICT_OR_DEREF", _CELL, 0, _C.CLASS, "pop a mapping; push its item, else what a cell holds", _V12),
    _O("LOAD_FROM_DICT_OR_GLOBALS", _NAME, 0, _C.CLASS, "pop a mapping; push its item, else a global", _V12),
    _O("LOAD_LOCALS", _NONE, 1, _C.CLASS, "push the namespace of a class body", _V12),
    _O("LOAD_NAME", _NAME, 1, _C.CLASS, "push from namespace, globals or builtins"),
    _O("LOAD_GLOBAL", _NAME1, lambda n: 1 + (n & 1), _C.LOAD, "push a global or builtin; bit 0: and a NULL"),
    _O("LOAD_ATTR", _NAME, 0, _C.LOAD, "replace the top by its attribute", last=_V11),
    _O("LOAD_ATTR", _NAME1, lambda n: n & 1, _C.LOAD, "the same; bit 0: push method and self, or a NULL pair", _V12),
    _O("LOAD_METHOD", _NAME, 1, _C.LOAD, "replace the top by method and self, or NULL and attribute", last=_V11),
    _O("LOAD_SUPER_ATTR", _NAME2, lambda n: (n & 1) - 2, _C.LOAD, "super(class, self).name; bit 0: as method", _V12),
    _O("LOAD_ASSERTION_ERROR", _NONE, 1, _C.LOAD, "push AssertionError"),
    _O("STORE_FAST", _LOCAL, -1, _C.STORE, "pop into a local"),
    _O("STORE_FAST_LOAD_FAST", _PAIR, 0, _C.STORE, "pop into a local, push another", _V13),
    _O("STORE_FAST_STORE_FAST", _PAIR, -2, _C.STORE, "pop into two locals", _V13),
    _O("STORE_DEREF", _CELL, -1, _C.STORE, "pop into a cell"),
    _O("STORE_NAME", _NAME, -1, _C.CLASS, "pop into the namespace"),
    _O("STORE_GLOBAL", _NAME, -1, _C.STORE, "pop into a global"),
    _O("STORE_ATTR", _NAME, -2, _C.STORE, "pop object and value, set the attribute"),
    _O("STORE_SUBSCR", _NONE, -3, _C.STORE, "pop key, container and value, set the item"),
    _O("STORE_SLICE", _NONE, -4, _C.STORE, "pop stop, start, container and value, set the slice", _V12),
    _O("DELETE_FAST", _LOCAL, 0, _C.DELETE, "unbind a local"),
    _O("DELETE_DEREF", _CELL, 0, _C.DELETE, "empty a cell"),
    _O("DELETE_NAME", _NAME, 0, _C.CLASS, "delete from the namespace"),
    _O("DELETE_GLOBAL", _NAME, 0, _C.DELETE, "delete a global"),
    _O("DELETE_ATTR", _NAME, -1, _C.DELETE, "pop an object, delete its attribute"),
    _O("DELETE_SUBSCR", _NONE, -2, _C.DELETE, "pop key and container, delete the item"),
    # Cells
    _O("MAKE_CELL", _CELL, 0, _C.INTERNAL, "put a local's value in a new cell in its slot"),
    _O("COPY_FREE_VARS", _COUNT, 0, _C.INTERNAL, "copy the closure's n cells into the frame"),
    # Operators
    _O("UNARY_POSITIVE", _NONE, 0, _C.UNARY, "+top", last=_V11),
    _O("UNARY_NEGATIVE", _NONE, 0, _C.UNARY, "-top"),
    _O("UNARY_NOT", _NONE, 0, _C.UNARY, "not top"),
    _O("UNARY_INVERT", _NONE, 0, _C.UNARY, "~top"),
    _O("TO_BOOL", _NONE, 0, _C.UNARY, "bool(top)", _V13),
    _O("BINARY_OP", Operand.BINARY, -1, _C.BINARY, "arithmetic of two items, also in place"),
    _O("BINARY_SUBSCR", _NONE, -1, _C.BINARY, "container[key]"),
    _O("BINARY_SLICE", _NONE, -2, _C.BINARY, "container[start:stop]", _V12),
    _O("COMPARE_OP", Operand.COMPARE, -1, _C.BINARY, "< <= == != > >=; bit 4 since 3.13: bool of the result"),
    _O("IS_OP", _FLAGS, -1, _C.BINARY, "is; bit 0: is not"),
    _O("CONTAINS_OP", _FLAGS, -1, _C.BINARY, "in; bit 0: not in"),
    # Containers
    _O("BUILD_TUPLE", _COUNT, lambda n: 1 - n, _C.BUILD, "tuple of n items"),
    _O("BUILD_LIST", _COUNT, lambda n: 1 - n, _C.BUILD, "list of n items"),
    _O("BUILD_SET", _COUNT, lambda n: 1 - n, _C.BUILD, "set of n items"),
    _O("BUILD_MAP", _COUNT, lambda n: 1 - 2 * n, _C.BUILD, "dict of n pairs"),
    _O("BUILD_CONST_KEY_MAP", _COUNT, lambda n: -n, _C.BUILD, "dict of n values and a tuple of keys"),
    _O("BUILD_STRING", _COUNT, lambda n: 1 - n, _C.FORMAT, "join n strings"),
    _O("BUILD_SLICE", _COUNT, lambda n: -2 if n == 3 else -1, _C.BUILD, "slice of two or three items"),
    _O("LIST_TO_TUPLE", _NONE, 0, _C.BUILD, "tuple(top), of a list", last=_V11),
    _O("LIST_APPEND", _COUNT, -1, _C.BUILD, "pop, append to the list n deep"),
    _O("SET_ADD", _COUNT, -1, _C.BUILD, "pop, add to the set n deep"),
    _O("MAP_ADD", _COUNT, -2, _C.BUILD, "pop value and key, store in the dict n deep"),
    _O("LIST_EXTEND", _COUNT, -1, _C.BUILD, "pop, extend the list n deep"),
    _O("SET_UPDATE", _COUNT, -1, _C.BUILD, "pop, update the set n deep"),
    _O("DICT_UPDATE", _COUNT, -1, _C.BUILD, "pop, update the dict n deep"),
    _O("DICT_MERGE", _COUNT, -1, _C.BUILD, "the same for **kwargs: a repeated key is a TypeError"),
    _O("UNPACK_SEQUENCE", _COUNT, lambda n: n - 1, _C.UNPACK, "pop, push its n items, first on top"),
    _O("UNPACK_EX", _FLAGS, _pushed_by_unpack_ex, _C.UNPACK, "the same, starred: low byte before, rest after"),
    _O("GET_LEN", _NONE, 1, _C.MATCH, "push len(top)"),
    # Calls
    _O("KW_NAMES", _CONST, 0, _C.CALL, "names of the next CALL's keyword arguments", last=_V12),
    _O("PRECALL", _COUNT, lambda n: -n, _C.CALL, "first half of a call with n arguments", last=_V11),
    _O("CALL", _COUNT, -1, _C.CALL, "second half of a call with n arguments", last=_V11),
    _O("CALL", _COUNT, lambda n: -1 - n, _C.CALL, "call with n arguments", _V12),
    _O("CALL_KW", _COUNT, lambda n: -2 - n, _C.CALL, "the same, the last ones named by the tuple on top", _V13),
    _O("CALL_FUNCTION_EX", _FLAGS, lambda n: -2 - (n & 1), _C.CALL, "call with *args; bit 0: and **kwargs"),
    _O("CALL_INTRINSIC_1", Operand.INTRINSIC_1, 0, _C.INTRINSIC, "an internal function of one argument", _V12),
    _O("CALL_INTRINSIC_2", Operand.INTRINSIC_2, -1, _C.INTRINSIC, "an internal function of two arguments", _V12),
    _O("MAKE_FUNCTION", _FLAGS, _popped_attributes, _C.FUNCTION, "function of code and FUNCTION_ATTRIBUTES", last=_V12),
    _O("MAKE_FUNCTION", _NONE, 0, _C.FUNCTION, "function of code", _V13),
    _O("SET_FUNCTION_ATTRIBUTE", _FLAGS, -1, _C.FUNCTION, "set one of FUNCTION_ATTRIBUTES", _V13),
    _O("LOAD_BUILD_CLASS", _NONE, 1, _C.CLASS, "push builtins.__build_class__"),
    _O("SETUP_ANNOTATIONS", _NONE, 0, _C.CLASS, "make __annotations__ in the namespace"),
    # Control flow
    _O("JUMP_FORWARD", _JUMP, 0, _C.JUMP, "jump", jump=_FWD),
    _O("JUMP_BACKWARD", _JUMP, 0, _C.JUMP, "jump; checks for signals", jump=_BACK),
    _O("JUMP_BACKWARD_NO_INTERRUPT", _JUMP, 0, _C.JUMP, "jump, inside await and yield from", jump=_BACK),
    _O("JUMP_IF_TRUE_OR_POP", _JUMP, -1, _C.JUMP, "jump if true, else pop", last=_V11, jump=_IF, jump_effect=0),
    _O("JUMP_IF_FALSE_OR_POP", _JUMP, -1, _C.JUMP, "jump if false, else pop", last=_V11, jump=_IF, jump_effect=0),
    _O("POP_JUMP_FORWARD_IF_TRUE", _JUMP, -1, _C.JUMP, "pop, jump if true", last=_V11, jump=_IF),
    _O("POP_JUMP_FORWARD_IF_FALSE", _JUMP, -1, _C.JUMP, "pop, jump if false", last=_V11, jump=_IF),
    _O("POP_JUMP_FORWARD_IF_NONE", _JUMP, -1, _C.JUMP, "pop, jump if None", last=_V11, jump=_IF),
    _O("POP_JUMP_FORWARD_IF_NOT_NONE", _JUMP, -1, _C.JUMP, "pop, jump if not None", last=_V11, jump=_IF),
    _O("POP_JUMP_BACKWARD_IF_TRUE", _JUMP, -1, _C.JUMP, "pop, jump if true", last=_V11, jump=_BACK_IF),
    _O("POP_JUMP_BACKWARD_IF_FALSE", _JUMP, -1, _C.JUMP, "pop, jump if false", last=_V11, jump=_BACK_IF),
    _O("POP_JUMP_BACKWARD_IF_NONE", _JUMP, -1, _C.JUMP, "pop, jump if None", last=_V11, jump=_BACK_IF),
    _O("POP_JUMP_BACKWARD_IF_NOT_NONE", _JUMP, -1, _C.JUMP, "pop, jump if not None", last=_V11, jump=_BACK_IF),
    _O("POP_JUMP_IF_TRUE", _JUMP, -1, _C.JUMP, "pop, jump if true", _V12, jump=_IF),
    _O("POP_JUMP_IF_FALSE", _JUMP, -1, _C.JUMP, "pop, jump if false", _V12, jump=_IF),
    _O("POP_JUMP_IF_NONE", _JUMP, -1, _C.JUMP, "pop, jump if None", _V12, jump=_IF),
    _O("POP_JUMP_IF_NOT_NONE", _JUMP, -1, _C.JUMP, "pop, jump if not None", _V12, jump=_IF),
    _O("GET_ITER", _NONE, 0, _C.LOOP, "iter(top)"),
    _O("FOR_ITER", _JUMP, 1, _C.LOOP, "push the next item, or pop and jump", last=_V11, jump=_IF, jump_effect=-1),
    _O("FOR_ITER", _JUMP, 1, _C.LOOP, "push the next item, or jump to END_FOR", _V12, jump=_IF),
    _O("RETURN_VALUE", _NONE, -1, _C.RETURN, "return the top", jump=_LEAVE),
    _O("RETURN_CONST", _CONST, 0, _C.RETURN, "return a constant", _V12, jump=_LEAVE),
    # Exceptions and with blocks
    _O("PUSH_EXC_INFO", _NONE, 1, _C.EXCEPTION, "make the top the current exception, the old one goes below it"),
    _O("POP_EXCEPT", _NONE, -1, _C.EXCEPTION, "pop the current exception that was before"),
    _O("CHECK_EXC_MATCH", _NONE, 0, _C.EXCEPTION, "replace a type by whether what is below matches it"),
    _O("CHECK_EG_MATCH", _NONE, 0, _C.EXCEPTION, "split the exception group below by the type on top"),
    _O("PREP_RERAISE_STAR", _NONE, -1, _C.EXCEPTION, "pop the group and what except* raised: what to raise", last=_V11),
    _O("RAISE_VARARGS", _COUNT, lambda n: -n, _C.EXCEPTION, "raise; 0 again, 1 this, 2 this from cause", jump=_LEAVE),
    _O("RERAISE", _FLAGS, -1, _C.EXCEPTION, "raise the top again; n: where to find the place", jump=_LEAVE),
    _O("BEFORE_WITH", _NONE, 1, _C.WITH, "manager -> its exit function, what it gives on entry"),
    _O("WITH_EXCEPT_START", _NONE, 1, _C.WITH, "call the exit function 4 deep with the exception"),
    # Pattern matching
    _O("MATCH_MAPPING", _NONE, 1, _C.MATCH, "push whether the top is a mapping"),
    _O("MATCH_SEQUENCE", _NONE, 1, _C.MATCH, "push whether the top is a sequence"),
    _O("MATCH_KEYS", _NONE, 1, _C.MATCH, "push the values of a tuple of keys, or None"),
    _O("MATCH_CLASS", _COUNT, -2, _C.MATCH, "pop names, class and subject; push attributes, or None"),
    # Text
    _O("FORMAT_VALUE", _FLAGS, lambda n: -1 if n & 4 else 0, _C.FORMAT, "bits 0-1: conversion, 2: format", last=_V12),
    _O("CONVERT_VALUE", _FLAGS, 0, _C.FORMAT, "1 str, 2 repr, 3 ascii of the top", _V13),
    _O("FORMAT_SIMPLE", _NONE, 0, _C.FORMAT, "format(top)", _V13),
    _O("FORMAT_WITH_SPEC", _NONE, -1, _C.FORMAT, "format(value, top)", _V13),
    _O("PRINT_EXPR", _NONE, -1, _C.FORMAT, "show the top at the interactive prompt", last=_V11),
    # Imports
    _O("IMPORT_NAME", _NAME, -1, _C.IMPORT, "pop names and level, push the module"),
    _O("IMPORT_FROM", _NAME, 1, _C.IMPORT, "push an attribute of the module on top"),
    _O("IMPORT_STAR", _NONE, -1, _C.IMPORT, "pop a module, copy its public names", last=_V11),
    # Generators and coroutines
    _O("RETURN_GENERATOR", _NONE, 0, _C.GENERATOR, "return a generator", last=_V12),
    _O("RETURN_GENERATOR", _NONE, 1, _C.GENERATOR, "return a generator; its stack starts with None", _V13),
    _O("YIELD_VALUE", _NONE, 0, _C.GENERATOR, "yield the top, then push what was sent", last=_V11),
    _O("YIELD_VALUE", _IGNORED, 0, _C.GENERATOR, "yield the top, then push what was sent", _V12),
    _O("GET_YIELD_FROM_ITER", _NONE, 0, _C.GENERATOR, "iterator of the top for yield from"),
    _O("SEND", _JUMP, 0, _C.GENERATOR, "send the top, or pop both and jump", last=_V11, jump=_IF, jump_effect=-1),
    _O("SEND", _JUMP, 0, _C.GENERATOR, "send the top to the iterator below it, or jump at its end", _V12, jump=_IF),
    _O("END_SEND", _NONE, -1, _C.GENERATOR, "drop the iterator below the top", _V12),
    _O("CLEANUP_THROW", _NONE, -1, _C.GENERATOR, "end of yield from by throw: value of StopIteration, or raise", _V12),
    _O("ASYNC_GEN_WRAP", _NONE, 0, _C.ASYNC, "wrap the top for an async generator", last=_V11),
    _O("GET_AWAITABLE", _FLAGS, 0, _C.ASYNC, "iterator of an awaitable"),
    _O("GET_AITER", _NONE, 0, _C.ASYNC, "top.__aiter__()"),
    _O("GET_ANEXT", _NONE, 1, _C.ASYNC, "push awaitable of top.__anext__()"),
    _O("END_ASYNC_FOR", _NONE, -2, _C.ASYNC, "end of async for, or raise what is not StopAsyncIteration"),
    _O("BEFORE_ASYNC_WITH", _NONE, 1, _C.ASYNC, "as BEFORE_WITH, with awaitables"),
    # Inside the interpreter
    _O("CACHE", _NONE, 0, _C.INTERNAL, "inline cache of the instruction before"),
    _O("EXTENDED_ARG", _IGNORED, 0, _C.INTERNAL, "upper bits of the next operand"),
    _O("RESUME", _FLAGS, 0, _C.INTERNAL, "start of a function (0), or after yield, yield from, await (1, 2, 3)"),
    _O("INTERPRETER_EXIT", _NONE, -1, _C.INTERNAL, "leave the evaluation loop", _V12, jump=_LEAVE),
    _O("EXIT_INIT_CHECK", _NONE, -1, _C.INTERNAL, "check that __init__ returned None", _V13),
    _O("ENTER_EXECUTOR", _IGNORED, 0, _C.INTERNAL, "machine code of a hot loop", _V13),
    _O("RESERVED", _NONE, 0, _C.INTERNAL, "unused number", _V12),
    # Before assembling
    _O("JUMP", _JUMP, 0, _C.PSEUDO, "JUMP_FORWARD or JUMP_BACKWARD", _V12, jump=Jump.ANY),
    _O("JUMP_NO_INTERRUPT", _JUMP, 0, _C.PSEUDO, "JUMP_FORWARD or JUMP_BACKWARD_NO_INTERRUPT", _V12, jump=Jump.ANY),
    _O("LOAD_CLOSURE", _CELL, 1, _C.PSEUDO, "LOAD_FAST of a cell", _V13),
    _O("LOAD_METHOD", _NAME, 1, _C.PSEUDO, "LOAD_ATTR with bit 0", _V12),
    _O("LOAD_SUPER_METHOD", _NAME2, -1, _C.PSEUDO, "LOAD_SUPER_ATTR with bit 0", _V12),
    _O("LOAD_ZERO_SUPER_ATTR", _NAME2, -1, _C.PSEUDO, "LOAD_SUPER_ATTR of super()", _V12),
    _O("LOAD_ZERO_SUPER_METHOD", _NAME2, -1, _C.PSEUDO, "LOAD_SUPER_ATTR of super(), bit 0", _V12),
    _O("POP_BLOCK", _NONE, 0, _C.PSEUDO, "end of a range of the exception table", _V12),
    _O("SETUP_FINALLY", _JUMP, 0, _C.PSEUDO, "start of a range", _V12, jump=Jump.ANY, jump_effect=1),
    _O("SETUP_CLEANUP", _JUMP, 0, _C.PSEUDO, "range that keeps the place", _V12, jump=Jump.ANY, jump_effect=2),
    _O("SETUP_WITH", _JUMP, 0, _C.PSEUDO, "start of a with block's range", _V12, jump=Jump.ANY, jump_effect=1),
    _O("STORE_FAST_MAYBE_NULL", _LOCAL, -1, _C.PSEUDO, "STORE_FAST of an item that may be NULL", _V12),
)  # fmt: skip
"""All rows, those of one name next to each other or by kind."""

_INSTRUMENTED_12 = """
    CALL CALL_FUNCTION_EX END_FOR END_SEND FOR_ITER INSTRUCTION JUMP_BACKWARD JUMP_FORWARD LINE LOAD_SUPER_ATTR
    POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE RESUME RETURN_CONST RETURN_VALUE
    YIELD_VALUE
"""

TABLE += tuple(
    Opcode(f"INSTRUMENTED_{name}", _IGNORED, 0, _C.INSTRUMENTED, f"{name} that reports to sys.monitoring", first)
    for first, names in ((_V12, _INSTRUMENTED_12), (_V13, "CALL_KW"))
    for name in names.split()
)

BY_NAME: Mapping[str, Opcode] = {row.name: row for row in TABLE if row.first <= VERSION <= row.last}
"""Name -> row of the running version."""

BY_NUMBER: Mapping[int, Opcode] = {dis.opmap[name]: row for name, row in BY_NAME.items() if name in dis.opmap}
"""Number -> row of the running version."""

TERMINAL = frozenset(name for name, row in BY_NAME.items() if not row.falls_through)
"""Instructions after which control never goes on with the next one."""


@dataclass(frozen=True, slots=True)
class BinaryOperator:
    """One meaning of BINARY_OP: the text in the user's code, the function, the special methods, left and right."""

    symbol: str
    function: Callable[[Any, Any], Any]
    method: str
    reflected: str

    @property
    def inplace(self) -> bool:
        """Whether it is an augmented assignment."""
        return self.symbol.endswith("=")


_OPERATORS = (
    ("+", operator.add, operator.iadd, "add"),
    ("&", operator.and_, operator.iand, "and"),
    ("//", operator.floordiv, operator.ifloordiv, "floordiv"),
    ("<<", operator.lshift, operator.ilshift, "lshift"),
    ("@", operator.matmul, operator.imatmul, "matmul"),
    ("*", operator.mul, operator.imul, "mul"),
    ("%", operator.mod, operator.imod, "mod"),
    ("|", operator.or_, operator.ior, "or"),
    ("**", operator.pow, operator.ipow, "pow"),
    (">>", operator.rshift, operator.irshift, "rshift"),
    ("-", operator.sub, operator.isub, "sub"),
    ("/", operator.truediv, operator.itruediv, "truediv"),
    ("^", operator.xor, operator.ixor, "xor"),
)

BINARY_OPERATORS: tuple[BinaryOperator, ...] = (
    *(BinaryOperator(s, function, f"__{m}__", f"__r{m}__") for s, function, _, m in _OPERATORS),
    *(BinaryOperator(f"{s}=", function, f"__i{m}__", f"__r{m}__") for s, _, function, m in _OPERATORS),
)
"""BINARY_OP's operand -> operator."""

COMPARE_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Symbols in the order of COMPARE_OP's operand -> function."""

COMPARE_SYMBOLS = tuple(COMPARE_OPERATORS)
"""COMPARE_OP's operand, without its lower bits -> symbol."""


INTRINSICS_1: tuple[tuple[str, str], ...] = (
    ("INVALID", "never used"),
    ("PRINT", "show the top at the interactive prompt"),
    ("IMPORT_STAR", "copy the public names of a module"),
    ("STOPITERATION_ERROR", "StopIteration that leaves a generator becomes RuntimeError"),
    ("ASYNC_GEN_WRAP", "wrap the top for an async generator"),
    ("UNARY_POSITIVE", "+top"),
    ("LIST_TO_TUPLE", "tuple(top), of a list"),
    ("TYPEVAR", "type variable of a name"),
    ("PARAMSPEC", "parameter specification of a name"),
    ("TYPEVARTUPLE", "type variable tuple of a name"),
    ("SUBSCRIPT_GENERIC", "typing.Generic[top]"),
    ("TYPEALIAS", "type alias of name, parameters and value"),
)
"""CALL_INTRINSIC_1's operand -> name and meaning."""

INTRINSICS_2: tuple[tuple[str, str], ...] = (
    ("INVALID", "never used"),
    ("PREP_RERAISE_STAR", "what except* has to raise, of the group and a list"),
    ("TYPEVAR_WITH_BOUND", "type variable with a bound"),
    ("TYPEVAR_WITH_CONSTRAINTS", "type variable with constraints"),
    ("SET_FUNCTION_TYPE_PARAMS", "set __type_params__ of a function"),
    ("SET_TYPEPARAM_DEFAULT", "set the default of a type parameter; since 3.13"),
)
"""CALL_INTRINSIC_2's operand -> name and meaning."""

PAIRS: Mapping[str, tuple[str, str]] = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
"""Instruction on two slots -> the two instructions that it stands for."""

FUNCTION_ATTRIBUTES: Mapping[int, str] = {
    1: "defaults",
    2: "kwdefaults",
    4: "annotations",
    8: "closure",
}
"""Bit of MAKE_FUNCTION's or SET_FUNCTION_ATTRIBUTE's operand -> what the stack holds for it."""
