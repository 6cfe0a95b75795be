"""Lists of instructions to code objects and back.

The list form is mutable: `Instr`s with names, constants and `Label`s for operands, and `Label`s between them.
Instructions carry their source position and exception handler, so that moving, copying or inserting them can't
put a table out of step. `assemble(disassemble(code), Layout.of(code))` gives the same code again.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import CodeType
from typing import Any

from firebrick.capture.bytecode.code_tables import NOWHERE, Position, encode_exceptions, encode_positions
from firebrick.capture.bytecode.cpython import CACHES, GENERATORS_START_DEEP, HAS_DIRECTED_JUMPS
from firebrick.capture.bytecode.instructions import ExceptionEntry, Instruction, decode
from firebrick.capture.bytecode.opcodes import BY_NAME, PAIRS, Opcode, Operand
from firebrick.errors import InternalError


class Label:
    """A place between instructions."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """Where an instruction's exceptions go: the stack is cut to `depth`, then `lasti` and the exception are pushed."""

    target: Label
    depth: int
    lasti: bool


class Instr:
    """One instruction to be assembled.

    `arg` is the operand's meaning: the constant itself, a name, two names, a `Label`, or a number. `flag` holds the
    bits beside a name. Jumps are named without direction: JUMP, JUMP_NO_INTERRUPT, POP_JUMP_IF_TRUE and so on.
    """

    __slots__ = ("arg", "flag", "handler", "op", "position")

    def __init__(
        self, op: str, arg: Any = 0, flag: int = 0, position: Position = NOWHERE, handler: Handler | None = None
    ) -> None:
        self.op, self.arg, self.flag = op, arg, flag
        self.position, self.handler = position, handler

    def copy(self) -> Instr:
        """Another instruction with the same parts."""
        return Instr(self.op, self.arg, self.flag, self.position, self.handler)

    def __repr__(self) -> str:
        return f"{self.op} {self.arg!r}" + (f" +{self.flag}" if self.flag else "")


Item = Instr | Label


@dataclass(slots=True)
class Layout:
    """Everything of a code object but its instructions and their tables."""

    name: str
    qualname: str
    filename: str
    first_line: int
    flags: int
    argcount: int
    posonly: int
    kwonly: int
    varnames: list[str]
    cellvars: list[str]
    freevars: list[str]
    consts: list[Any]
    names: list[str]

    @classmethod
    def of(cls, code: CodeType) -> Layout:
        """The parts of `code`."""
        return cls(
            code.co_name, code.co_qualname, code.co_filename, code.co_firstlineno, code.co_flags, code.co_argcount,
            code.co_posonlyargcount, code.co_kwonlyargcount, list(code.co_varnames), list(code.co_cellvars),
            list(code.co_freevars), list(code.co_consts), list(code.co_names),
        )  # fmt: skip


_UNDIRECTED = {
    "JUMP_FORWARD": "JUMP",
    "JUMP_BACKWARD": "JUMP",
    "JUMP_BACKWARD_NO_INTERRUPT": "JUMP_NO_INTERRUPT",
    **{
        f"POP_JUMP_{direction}_IF_{what}": f"POP_JUMP_IF_{what}"
        for direction in ("FORWARD", "BACKWARD")
        for what in ("TRUE", "FALSE", "NONE", "NOT_NONE")
    },
}
_DIRECTED = {  # name -> names of the forward and of the backward jump
    "JUMP": ("JUMP_FORWARD", "JUMP_BACKWARD"),
    "JUMP_NO_INTERRUPT": ("JUMP_FORWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
}
if HAS_DIRECTED_JUMPS:
    for _what in ("TRUE", "FALSE", "NONE", "NOT_NONE"):
        _DIRECTED[f"POP_JUMP_IF_{_what}"] = (f"POP_JUMP_FORWARD_IF_{_what}", f"POP_JUMP_BACKWARD_IF_{_what}")

_MEANINGFUL = frozenset(
    (Operand.CONST, Operand.NAME, Operand.NAME_FLAG, Operand.NAME_FLAGS)
    + (Operand.LOCAL, Operand.CELL, Operand.LOCAL_PAIR)
)
_MAX_PAIR_SLOT = 15
_GENERATOR_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def disassemble(code: CodeType) -> list[Item]:
    """Instructions and labels of a code object; RESUME, MAKE_CELL and the rest of its start included."""
    instructions = decode(code)
    labels: dict[int, Label] = {}
    handlers: dict[int, Handler] = {}

    def handler_of(entry: ExceptionEntry) -> Handler:
        handler = handlers.get(id(entry))
        if handler is None:
            target = labels.setdefault(entry.target, Label())
            handler = handlers[id(entry)] = Handler(target, entry.depth, entry.lasti)
        return handler

    instrs: list[Instr] = []
    for i in instructions:
        target = labels.setdefault(i.argval, Label()) if i.is_jump else None
        instrs.append(instr_of(i, target, None if i.handler is None else handler_of(i.handler)))
    items: list[Item] = []
    for index, instr in enumerate(instrs):
        if index in labels:
            items.append(labels[index])
        items.append(instr)
    return items


def instr_of(i: Instruction, target: Label | None, handler: Handler | None) -> Instr:
    """An instruction that was read, with `target` for its jump and `handler` for its exceptions."""
    arg = target if i.is_jump else i.argval if i.row.operand in _MEANINGFUL else i.arg
    return Instr(_UNDIRECTED.get(i.opname, i.opname), arg, i.flag, i.position, handler)


def assemble(items: Sequence[Item], layout: Layout) -> CodeType:
    """Code object of a list of instructions.

    Names and constants that `layout` lacks are appended to it.

    Raises:
        InternalError: an operand names no slot or label, or paths meet with different depths of the stack.
    """
    return _Assembler(items, layout).code()


def expand(items: Sequence[Item], layout: Layout) -> list[Item]:
    """The list with instructions on two slots split where a slot's number doesn't fit."""
    low = set(layout.varnames[: _MAX_PAIR_SLOT + 1])
    out: list[Item] = []
    for item in items:
        if isinstance(item, Instr) and item.op in PAIRS and not low.issuperset(item.arg):
            ops = zip(PAIRS[item.op], item.arg, strict=True)
            out += (Instr(op, name, 0, item.position, item.handler) for op, name in ops)
        else:
            out.append(item)
    return out


class _Assembler:
    def __init__(self, items: Sequence[Item], layout: Layout) -> None:
        self.layout = layout
        self.instrs: list[Instr] = []
        self.places: dict[Label, int] = {}
        for item in expand(items, layout):
            if isinstance(item, Instr):
                self.instrs.append(item)
            else:
                self.places[item] = len(self.instrs)
        self._number_operands()

    def code(self) -> CodeType:
        layout = self.layout
        depth = self._stack_depth()
        starts, text = self._write()
        return types.CodeType(
            layout.argcount, layout.posonly, layout.kwonly, len(layout.varnames), depth, layout.flags, text,
            tuple(layout.consts), tuple(layout.names), tuple(layout.varnames), layout.filename, layout.name,
            layout.qualname, layout.first_line, self._positions(starts), self._exceptions(starts),
            tuple(layout.freevars), tuple(layout.cellvars),
        )  # fmt: skip

    # -- operands -------------------------------------------------------------

    def _number_operands(self) -> None:
        layout = self.layout
        names = {name: i for i, name in enumerate(layout.names)}
        consts: dict[object, int] = {}
        for i, value in enumerate(layout.consts):
            consts.setdefault(_const_key(value), i)
        locals_ = {name: i for i, name in enumerate(layout.varnames)}
        cells: dict[str, int] = {}
        slot = len(layout.varnames)
        for name in layout.cellvars:
            if name in locals_:
                cells[name] = locals_[name]
            else:
                cells[name], slot = slot, slot + 1
        for name in layout.freevars:
            cells[name], slot = slot, slot + 1
        self.rows: list[Opcode] = []
        self.args: list[int] = []
        for index, instr in enumerate(self.instrs):
            row = self._row(instr, index)
            self.rows.append(row)
            kind, arg = row.operand, instr.arg
            if kind is Operand.LOCAL:
                # A slot can be both: LOAD_CLOSURE means the cell.
                first, second = (cells, locals_) if instr.op == "LOAD_CLOSURE" else (locals_, cells)
                number = first.get(arg, -1)
                arg = second.get(arg, -1) if number < 0 else number
            elif kind is Operand.CONST:
                key = _const_key(arg)
                number = consts.get(key, -1)
                if number < 0:
                    number = consts[key] = len(layout.consts)
                    layout.consts.append(arg)
                arg = number
            elif kind is Operand.NAME or kind is Operand.NAME_FLAG or kind is Operand.NAME_FLAGS:
                number = names.get(arg, -1)
                if number < 0:
                    number = names[arg] = len(layout.names)
                    layout.names.append(arg)
                arg = number if kind is Operand.NAME else number << (1 + (kind is Operand.NAME_FLAGS)) | instr.flag
            elif kind is Operand.CELL:
                arg = cells.get(arg, -1)
            elif kind is Operand.LOCAL_PAIR:
                arg = locals_[arg[0]] << 4 | locals_[arg[1]]
            elif kind is Operand.JUMP:
                arg = 0
            if arg < 0:
                raise InternalError(f"{instr.op} names {instr.arg!r}, which {layout.qualname} has no slot for")
            self.args.append(arg)

    def _row(self, instr: Instr, index: int) -> Opcode:
        op = instr.op
        if op in _DIRECTED:
            op = _DIRECTED[op][self._target(instr) <= index]
        row = BY_NAME[op]
        return BY_NAME["LOAD_FAST"] if op == "LOAD_CLOSURE" and row.number > 255 else row

    def _target(self, instr: Instr) -> int:
        try:
            return self.places[instr.arg]
        except KeyError:
            raise InternalError(f"{instr.op} jumps to a label that is not placed") from None

    # -- depth of the stack ---------------------------------------------------

    def _stack_depth(self) -> int:
        rows, args, instrs, places = self.rows, self.args, self.instrs, self.places
        depths = [-1] * (len(instrs) + 1)
        # Before 3.13 what RETURN_GENERATOR leaves for the first POP_TOP is not in its effect.
        entry = int(GENERATORS_START_DEEP and bool(self.layout.flags & _GENERATOR_FLAGS))
        deepest, work = entry, [(0, entry)]
        while work:
            index, depth = work.pop()
            while True:
                if depths[index] >= 0:
                    if depths[index] != depth:
                        raise InternalError(f"stack is {depths[index]} or {depth} deep at {instrs[index]!r}")
                    break
                depths[index] = depth
                instr, row, arg = instrs[index], rows[index], args[index]
                handler = instr.handler
                if handler is not None:
                    work.append((places[handler.target], handler.depth + handler.lasti + 1))
                    deepest = max(deepest, handler.depth + handler.lasti + 1)
                if row.operand is Operand.JUMP:
                    after = depth + row.stack_effect(arg, jump=True)
                    work.append((places[instr.arg], after))
                    deepest = max(deepest, after)
                if not row.falls_through:
                    break
                depth += row.stack_effect(arg)
                deepest = max(deepest, depth)
                index += 1
        return max(deepest, 1)

    # -- text -----------------------------------------------------------------

    def _write(self) -> tuple[list[int], bytes]:
        """Offsets of the instructions in code units, their end last, and the code."""
        instrs, args = self.instrs, self.args
        numbers = [row.number for row in self.rows]
        extra = [_extensions(arg) for arg in args]
        base = [1 + CACHES[number] for number in numbers]
        jumps = [(i, self._target(instrs[i])) for i, row in enumerate(self.rows) if row.operand is Operand.JUMP]
        while True:
            starts, at = [0], 0
            for size, more in zip(base, extra, strict=True):
                at += size + more
                starts.append(at)
            stable = True
            for i, target in jumps:
                args[i] = abs(starts[target] - starts[i + 1])
                needed = _extensions(args[i])
                if needed > extra[i]:
                    extra[i], stable = needed, False
            if stable:
                break
        for i, target in jumps:
            if ("BACKWARD" in self.rows[i].name) != (starts[target] < starts[i + 1]):
                raise InternalError(f"{self.rows[i].name} can't reach a label in that direction")
        extended = BY_NAME["EXTENDED_ARG"].number
        out = bytearray()
        for number, arg, more in zip(numbers, args, extra, strict=True):
            for shift in range(8 * more, 0, -8):
                out.append(extended)
                out.append(arg >> shift & 255)
            out.append(number)
            out.append(arg & 255)
            out.extend(bytes(2 * CACHES[number]))
        return starts, bytes(out)

    # -- tables ---------------------------------------------------------------

    def _positions(self, starts: list[int]) -> bytes:
        runs = [(position, end - begin) for position, begin, end in self._runs(starts, attrgetter("position"))]
        return encode_positions(self.layout.first_line, runs)

    def _exceptions(self, starts: list[int]) -> bytes:
        return encode_exceptions(
            (begin, end, starts[self.places[handler.target]], handler.depth, handler.lasti)
            for handler, begin, end in self._runs(starts, attrgetter("handler"))
            if handler is not None
        )

    def _runs(self, starts: list[int], key: Callable[[Instr], Any]) -> Iterator[tuple[Any, int, int]]:
        """What instructions in a row have in common, and where these begin and end."""
        begin = 0
        for value, group in itertools.groupby(self.instrs, key):
            end = begin + len(list(group))
            yield value, starts[begin], starts[end]
            begin = end


def _extensions(arg: int) -> int:
    return 0 if arg < 256 else (arg.bit_length() - 1) >> 3


_BY_VALUE = (int, bool, str, bytes, type(None), type(Ellipsis))


def _const_key(value: object) -> object:
    """Equal keys only for constants that nobody can tell apart; all other objects go by identity."""
    return (type(value), value) if type(value) in _BY_VALUE else (id(value),)
