"""Disassembling and assembling gives the same code; the assembler's own duties one by one."""

from __future__ import annotations

import contextlib
import dis
import sys
import types

import pytest

from firebrick.capture.bytecode.assemble import Handler, Instr, Label, Layout, assemble, disassemble
from firebrick.capture.bytecode.code_tables import encode_exceptions, encode_positions
from firebrick.capture.bytecode.instructions import decode
from firebrick.errors import InternalError

MODULES = ("argparse", "ast", "asyncio.base_events", "collections", "contextlib", "dataclasses", "difflib", "enum")


def codes_in(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def functions_of(module):
    __import__(module)
    with open(sys.modules[module].__file__, encoding="utf-8") as f:
        top = compile(f.read(), module, "exec")
    return [code for code in codes_in(top) if code.co_flags & 1]


def differences(old, new):
    """Names of what differs between two code objects."""
    same = ("co_code", "co_consts", "co_names", "co_varnames", "co_cellvars", "co_freevars", "co_exceptiontable")
    same += ("co_flags", "co_name", "co_qualname", "co_filename", "co_firstlineno", "co_argcount", "co_kwonlyargcount")
    found = [name for name in same if getattr(old, name) != getattr(new, name)]
    if list(old.co_positions()) != list(new.co_positions()):
        found.append("positions")
    if max(old.co_stacksize, 1) != new.co_stacksize:
        found.append("co_stacksize")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_null_rewrite(module):
    for code in functions_of(module):
        assert differences(code, assemble(disassemble(code), Layout.of(code))) == [], code.co_qualname


def test_rewritten_function_behaves_the_same():
    def f(x, *args, key=3, **kwargs):
        total = [x]
        for i in args:
            try:
                total.append(i // key)
            except ZeroDivisionError as error:
                total.append(str(error))
            finally:
                total.append(lambda: i)
        return [t() if callable(t) else t for t in total], kwargs

    g = types.FunctionType(assemble(disassemble(f.__code__), Layout.of(f.__code__)), globals(), closure=f.__closure__)
    g.__kwdefaults__ = f.__kwdefaults__
    assert g(1, 2, 3, a=5) == f(1, 2, 3, a=5)
    assert g(1, 2, key=0) == f(1, 2, key=0)


def make(items, **parts):
    layout = Layout.of(compile("0", "made", "eval"))
    layout.flags, layout.consts = 3, [None]
    for name, value in parts.items():
        setattr(layout, name, value)
    return types.FunctionType(assemble(items, layout), {})


def test_extended_operands_and_long_jumps():
    end = Label()
    items = [Instr("RESUME"), Instr("LOAD_FAST", "a"), Instr("POP_JUMP_IF_FALSE", end)]
    for i in range(70000):
        items += [Instr("LOAD_CONST", float(i)), Instr("POP_TOP")]
    items += [Instr("LOAD_CONST", 1), Instr("RETURN_VALUE"), end, Instr("LOAD_CONST", 2), Instr("RETURN_VALUE")]
    f = make(items, argcount=1, varnames=["a"])
    assert f(True) == 1
    assert f(False) == 2


def test_constants_are_told_apart():
    parts = [1, True, 1.0, 0.0, -0.0, (1,), (True,), (1.0,)]
    items = [Instr("RESUME")] + [Instr("LOAD_CONST", p) for p in parts]
    items += [Instr("BUILD_TUPLE", len(parts)), Instr("RETURN_VALUE")]
    assert repr(make(items)()) == repr(tuple(parts))


def test_any_object_can_be_a_constant():
    thing = object()
    assert make([Instr("RESUME"), Instr("LOAD_CONST", thing), Instr("RETURN_VALUE")])() is thing


def test_handlers_cover_what_carries_them():
    caught = Label()
    handler = Handler(caught, 0, False)
    items = [
        Instr("RESUME"),
        Instr("LOAD_CONST", 1, handler=handler),
        Instr("LOAD_CONST", 0, handler=handler),
        Instr("BINARY_OP", 11, handler=handler),
        Instr("RETURN_VALUE"),
        caught,
        Instr("POP_TOP"),
        Instr("LOAD_CONST", "caught"),
        Instr("RETURN_VALUE"),
    ]
    assert make(items)() == "caught"


def test_depth_of_the_stack_is_checked():
    middle = Label()
    items = [Instr("RESUME"), Instr("LOAD_CONST", 1), Instr("POP_JUMP_IF_TRUE", middle), Instr("LOAD_CONST", 1)]
    items += [middle, Instr("LOAD_CONST", 1), Instr("RETURN_VALUE")]
    with pytest.raises(InternalError, match="deep"):
        make(items)


def test_unknown_slot_and_label_are_refused():
    with pytest.raises(InternalError, match="slot"):
        make([Instr("RESUME"), Instr("LOAD_FAST", "nothing"), Instr("RETURN_VALUE")])
    with pytest.raises(InternalError, match="label"):
        make([Instr("RESUME"), Instr("JUMP", Label())])


def test_position_runs_longer_than_an_entry():
    runs = [((5, 5, 3, 9), 20), ((None, None, None, None), 3), ((4, 7, 200, 1), 1), ((4, 4, None, None), 9)]
    code = make([Instr("RESUME"), Instr("LOAD_CONST", None), Instr("RETURN_VALUE")]).__code__
    code = code.replace(co_firstlineno=1, co_linetable=encode_positions(1, runs), co_code=b"\x09\x00" * 33)
    assert list(code.co_positions()) == [p for p, n in runs for _ in range(n)]


def test_exception_table_of_large_offsets():
    def f():
        with contextlib.suppress(ValueError):
            try:
                pass
            finally:
                f()

    def read(table):  # in code units
        entries = dis._parse_exception_table(types.SimpleNamespace(co_exceptiontable=table))
        return [(e.start >> 1, e.end >> 1, e.target >> 1, e.depth, e.lasti) for e in entries]

    entries = read(f.__code__.co_exceptiontable)
    assert entries
    large = [(start + 70000, end + 70000, target + 3_000_000, *rest) for start, end, target, *rest in entries]
    assert read(encode_exceptions(large)) == large


def test_decode_agrees_with_dis():
    for code in functions_of("argparse"):
        shown = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
        ours = decode(code)
        assert len(ours) == len(shown)
        for mine, theirs in zip(ours, shown, strict=True):
            name = "LOAD_FAST" if mine.opname == "LOAD_CLOSURE" and sys.version_info >= (3, 13) else mine.opname
            assert name == theirs.opname
            assert mine.offset == theirs.offset
            if mine.is_jump:
                target = ours[mine.argval]
                assert target.offset - 2 * (target.arg > 255) - 2 * (target.arg > 65535) == theirs.argval
            elif mine.opname != "KW_NAMES" and mine.row.operand.name in ("NAME", "LOCAL", "CELL", "CONST"):
                assert mine.argval == theirs.argval
