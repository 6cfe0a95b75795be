"""What is derived from `dis` of the running interpreter, and what it does not tell."""

from __future__ import annotations

import dis

import pytest

from firebrick.capture.bytecode import cpython as version
from firebrick.capture.bytecode.opcodes import BINARY_SYMBOLS, BY_NAME, COMPARE_SYMBOLS, PAIRS, Operand

SAMPLE = """
def outer(a, *rest, k=1, **more):
    import math
    for i, (x, *y) in enumerate(rest):
        with a as b, b.c as d:
            a.b[i:k] += x @ y, not x, [*y], {**more}, f"{a!r:>{k}}"
            if a is None or b in d or a < b <= d or (yield x):
                continue
        try:
            del a.b[i]
        except (ValueError, TypeError) as error:
            raise KeyError from error
        match a:
            case {"k": [1, *z]}:
                return lambda q=z: q(a, *rest, k=k, **more)
    return super().outer, [e for e in rest if e]
"""


def codes(code):
    yield code
    for const in code.co_consts:
        if hasattr(const, "co_code"):
            yield from codes(const)


@pytest.mark.parametrize("code", list(codes(compile(SAMPLE, "", "exec"))), ids=lambda code: code.co_name)
def test_operands_and_effects_are_those_of_dis(code):
    for i in dis.get_instructions(code):
        row = BY_NAME[i.opname]
        assert (row.operand is Operand.NONE) == (i.arg is None), i.opname
        assert (row.operand is Operand.JUMP) == (i.opcode in dis.hasjrel), i.opname
        for jump in (False, True):
            assert row.stack_effect(i.arg or 0, jump=jump) == dis.stack_effect(i.opcode, i.arg, jump=jump)


def test_instructions_that_name_several_things():
    for name in PAIRS:
        assert name not in BY_NAME or BY_NAME[name].operand is Operand.LOCAL_PAIR
    assert BY_NAME["LOAD_GLOBAL"].operand is Operand.NAME_FLAG
    assert BY_NAME["LOAD_ATTR"].operand is (Operand.NAME_FLAG if version.HAS_METHOD_FLAG else Operand.NAME)
    assert {BY_NAME[n].operand for n in ("LOAD_DEREF", "STORE_DEREF", "MAKE_CELL", "LOAD_CLOSURE")} == {Operand.CELL}


def test_what_never_goes_on():
    ends = {name for name, row in BY_NAME.items() if not row.falls_through}
    assert {"JUMP_FORWARD", "JUMP_BACKWARD", "RETURN_VALUE", "RAISE_VARARGS", "RERAISE"} <= ends
    assert not ends & {"NOP", "FOR_ITER", "POP_JUMP_IF_TRUE", "SEND", "YIELD_VALUE", "CALL"}


def test_operators():
    assert BINARY_SYMBOLS.index("+=") - BINARY_SYMBOLS.index("+") == len(BINARY_SYMBOLS) // 2
    assert COMPARE_SYMBOLS == ("<", "<=", "==", "!=", ">", ">=")
    for symbol in BINARY_SYMBOLS[: len(BINARY_SYMBOLS) // 2]:
        (i,) = (i for i in dis.get_instructions(compile(f"a {symbol} b", "", "eval")) if i.opname == "BINARY_OP")
        assert BINARY_SYMBOLS[i.arg] == symbol


def test_cache_counts_cover_all_numbers():
    assert len(version.CACHES) == 256
    assert version.CACHES[BY_NAME["LOAD_GLOBAL"].number] > 0
    assert version.CACHES[BY_NAME["POP_TOP"].number] == 0
