"""The opcode table against the running interpreter."""

from __future__ import annotations

import dis
import opcode
from collections import defaultdict

import pytest

from firebrick.capture.bytecode import cpython as version
from firebrick.capture.bytecode import opcodes
from firebrick.capture.bytecode.opcodes import BINARY_OPERATORS, BY_NAME, TABLE, Category, Jump, Operand

REAL = {name: number for name, number in dis.opmap.items() if number < 256}


def test_every_opcode_of_this_version_is_in_the_table():
    assert set(dis.opmap) - set(BY_NAME) == set()


def test_no_row_names_an_opcode_that_this_version_lacks():
    assert set(BY_NAME) - set(dis.opmap) == set()


def test_versions_of_one_name_are_disjoint():
    seen = defaultdict(list)
    for row in TABLE:
        assert row.first in version.SUPPORTED
        assert row.last in version.SUPPORTED
        assert row.first <= row.last
        seen[row.name] += [v for v in version.SUPPORTED if row.first <= v <= row.last]
    assert {name: v for name, v in seen.items() if len(v) != len(set(v))} == {}


def test_every_row_has_a_meaning():
    assert [row.name for row in TABLE if not row.meaning] == []


@pytest.mark.parametrize("name", [n for n, r in BY_NAME.items() if r.category is not Category.INSTRUMENTED])
def test_stack_effect_is_the_interpreters(name):
    row, number = BY_NAME[name], dis.opmap[name]
    takes_arg = number >= dis.HAVE_ARGUMENT if not hasattr(dis, "hasarg") else number in dis.hasarg
    args = (0, 1, 2, 3, 4, 7, 257) if takes_arg else (None,)
    for arg in args:
        if name == "MAKE_FUNCTION" and arg == 257:
            continue
        for jump in (False, True):
            try:
                expected = dis.stack_effect(number, arg, jump=jump)
            except ValueError:  # operands that this instruction can't have
                continue
            assert row.stack_effect(arg or 0, jump=jump) == expected, (arg, jump)


def _named(kind: str) -> set[str]:
    # 3.12 still lists a number that it has no name for
    names = {dis.opname[number] for number in getattr(opcode, kind)}
    return {name for name in names if "INSTRUMENTED" not in name and name in dis.opmap}


def test_operand_kinds_are_the_interpreters():
    names = {Operand.NAME, Operand.NAME_FLAG, Operand.NAME_FLAGS}
    slots = {Operand.LOCAL, Operand.LOCAL_PAIR, Operand.CELL}
    for kind, operands in (
        ("hasname", names),
        ("hasconst", {Operand.CONST}),
        ("hasjrel", {Operand.JUMP}),
        ("hascompare", {Operand.COMPARE}),
    ):
        wanted = {n for n, row in BY_NAME.items() if row.operand in operands}
        assert _named(kind) <= wanted, kind
        assert {n for n in wanted - _named(kind) if BY_NAME[n].category is not Category.PSEUDO} == set(), kind
    known = _named("haslocal") | _named("hasfree")
    wanted = {n for n, row in BY_NAME.items() if row.operand in slots}
    # dis leaves out the instructions on two slots
    assert known <= wanted
    assert {n for n in wanted - known if BY_NAME[n].operand is not Operand.LOCAL_PAIR} == set()


def test_jumps_have_targets_and_targets_have_jumps():
    for row in BY_NAME.values():
        jumps = row.jump not in (Jump.NEXT, Jump.LEAVE)
        assert jumps == (row.operand is Operand.JUMP), row.name


def test_binary_operators_are_the_interpreters():
    assert [op.symbol for op in BINARY_OPERATORS] == [symbol for _, symbol in opcode._nb_ops]
    for op in BINARY_OPERATORS:
        if op.symbol.rstrip("=") != "@":
            assert op.function(6, 2) == eval(f"6 {op.symbol.rstrip('=')} 2")


def test_compare_operators_are_the_interpreters():
    assert tuple(opcodes.COMPARE_OPERATORS) == opcode.cmp_op


@pytest.mark.skipif(not hasattr(opcode, "_intrinsic_1_descs"), reason="this version has no intrinsics")
def test_intrinsics_are_the_interpreters():
    ours = [f"INTRINSIC_{'1_' if name == 'INVALID' else ''}{name}" for name, _ in opcodes.INTRINSICS_1]
    assert ours == opcode._intrinsic_1_descs
    ours = [f"INTRINSIC_{'2_' if name == 'INVALID' else ''}{name}" for name, _ in opcodes.INTRINSICS_2]
    assert ours[: len(opcode._intrinsic_2_descs)] == opcode._intrinsic_2_descs


def test_cache_counts_cover_all_numbers():
    assert len(version.CACHES) == 256
    assert version.CACHES[REAL["LOAD_GLOBAL"]] > 0
    assert version.CACHES[REAL["POP_TOP"]] == 0
