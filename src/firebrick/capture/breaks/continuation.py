"""Code that goes on in the middle of a user's function: continuations, and regions of loops as functions.

Both take live locals and the stack's items for arguments, push the items and go on at an instruction. They keep the
user's file, lines and exception handlers, so `try` and `with` blocks that are open there are open in them: what they
need is on the stack. Their cells are the frame's own, passed as the closure. A continuation runs to the end of the
function; a region runs to one of its ends and gives back a tuple: the end's number if there are several, locals, and
the stack's items, the top first.
"""

from __future__ import annotations

import inspect
import weakref
from dataclasses import dataclass
from types import CodeType
from typing import Any

from firebrick import _native
from firebrick.capture.breaks.regions import ON_STACK, End, Region, names_touched
from firebrick.capture.bytecode.assemble import Handler, Instr, Item, Label, Layout, assemble, expand, instr_of
from firebrick.capture.bytecode.code_tables import Position
from firebrick.capture.bytecode.control_flow import NULL, VALUE, Flow, flow, live_names
from firebrick.capture.bytecode.cpython import HAS_CHECKED_LOADS
from firebrick.capture.bytecode.instructions import ByCode, Instruction
from firebrick.capture.bytecode.opcodes import Operand
from firebrick.capture.emit.writer import Emitter


class _Missing:
    """Stands for an unbound local among arguments and results."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unbound>"


MISSING = _Missing()
"""Stands for a local that may be unbound; who gets it unbinds the local again."""


def unread(value: Any) -> Any:
    """Mark a local that nobody reads before it is bound again; a graph need not give it back."""
    return value


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a continuation comes from: the user's code, where it goes on, and the user's index of each instruction."""

    reference: weakref.ref[CodeType]
    index: int
    indices: tuple[int, ...]  # -1 for instructions of its own
    region: Region | None  # what it runs to the end of, in the user's indices; None for the function

    @property
    def code(self) -> CodeType:
        """The user's code."""
        code = self.reference()
        assert code is not None
        return code


@dataclass(frozen=True, slots=True)
class Shape:
    """What tells the continuations of one code object apart."""

    index: int
    stack: str
    locals: tuple[str, ...]
    unsure: frozenset[str]  # those of `locals` that may be MISSING
    region: Region | None = None


_continuations: ByCode[dict[Shape, CodeType]] = ByCode(lambda code: {})
_origins: ByCode[list[Origin]] = ByCode(lambda code: [])


def origin(code: CodeType) -> Origin | None:
    """Where a continuation comes from; None for the user's own code."""
    origins = _origins(code)
    return origins[0] if origins and origins[0].reference() is not None else None


def is_rest(code: CodeType) -> bool:
    """Whether code is the rest of a function behind a graph break."""
    source = origin(code)
    return source is not None and source.region is None


def line_only(i: Instruction, code: CodeType) -> Position:
    """The line of an instruction as a position."""
    line = i.position[0] or code.co_firstlineno
    return (line, line, None, None)


def receiver_of(code: CodeType, index: int, region: Region | None = None) -> str | None:
    """The first argument, where `super()` without arguments will ask the frame for it."""
    if "__class__" not in code.co_freevars or not code.co_argcount:
        return None
    instructions = flow(code).instructions
    for j in flow(code).reachable(index) if region is None else region.members:
        i = instructions[j]
        if i.opname == "LOAD_SUPER_ATTR":
            asks = not i.flag & 2
        else:
            after = instructions[min(j + 1, len(instructions) - 1)]
            asks = i.argval == "super" and after.opname in ("PRECALL", "CALL") and not after.arg
        if asks:
            return code.co_varnames[0]
    return None


def load_unsure(emitter: Emitter, name: str, temp: str, depth: int = 0, *, keep: bool = False) -> None:
    """Move a local to another, MISSING if it is unbound, where the stack has `depth` items; `keep` copies it."""
    caught, done = Label(), Label()
    emitter.handler = Handler(caught, depth, False)
    emitter.emit("LOAD_FAST_CHECK" if HAS_CHECKED_LOADS else "LOAD_FAST", name)
    emitter.handler = None
    if not keep:
        emitter.delete_fast(name)
    emitter.jump(done)
    emitter.place(caught)
    emitter.pop()
    emitter.load_const(MISSING)
    emitter.place(done)
    emitter.emit("STORE_FAST", temp)


# -- copies of the user's instructions ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Copy:
    """Instructions to be assembled, each with a label before it, and where they were in the user's code."""

    items: list[Item]
    labels: dict[int, Label]
    indices: dict[int, int]  # id of a copied instruction -> index of the user's


def copied(graph: Flow, chosen: set[int], exits: dict[int, Label], below: int = 0) -> Copy:
    """The chosen instructions in their order; what leads out of them goes to `exits`.

    The copy's stack lacks the `below` lowest items of the user's.
    """
    instructions = graph.instructions
    labels = {index: Label() for index in chosen}
    places = {**labels, **exits}
    handlers: dict[int, Handler] = {}
    copy = Copy([], labels, {})
    for index in sorted(chosen):
        i = instructions[index]
        handler = None
        if i.handler is not None:
            entry = i.handler
            handler = handlers.get(id(entry))
            if handler is None:
                handler = handlers[id(entry)] = Handler(places[entry.target], entry.depth - below, entry.lasti)
        instr = instr_of(i, places[i.argval] if i.is_jump else None, handler)
        copy.indices[id(instr)] = index
        copy.items.extend((labels[index], instr))
        if i.row.falls_through and index + 1 not in chosen:
            copy.items.append(Instr("JUMP", places[index + 1], 0, i.position))
    return copy


def _check_cells(body: Copy, code: CodeType) -> None:
    """Raise what reading an unbound local raises, where an own cell may be empty: here it is a free variable."""
    unsure = _may_be_empty(code)
    items, body.items[:] = body.items[:], []
    for item in items:
        if isinstance(item, Instr) and body.indices.get(id(item)) in unsure:
            check = Emitter(code)
            check.position, check.handler = item.position, item.handler
            check.load_callable(_native.check_filled)
            check.load_closure(item.arg)
            check.load_const(item.arg)
            check.call(2)
            check.pop()
            body.items.extend(check.items)
        body.items.append(item)


def _may_be_empty(code: CodeType) -> set[int]:
    """Instructions that read one of the code's own cells without its having been filled on every way there."""
    graph, cells = flow(code), set()
    for name in code.co_cellvars:
        uses = {i.index: i.opname for i in graph.instructions if i.row.operand is Operand.CELL and i.argval == name}
        reached: set[int] = set()
        work = [] if name in code.co_varnames else [0]  # arguments are there from the start
        for index, op in uses.items():
            if op == "DELETE_DEREF":
                work.extend(graph.successors[index])
        while work:
            index = work.pop()
            reached.add(index)
            if uses.get(index) != "STORE_DEREF":
                work.extend(after for after in graph.successors[index] if after not in reached)
        cells |= {index for index in reached if uses.get(index) in ("LOAD_DEREF", "DELETE_DEREF")}
    return cells


# -- new code -------------------------------------------------------------------------------


def continuation(code: CodeType, shape: Shape) -> CodeType:
    """Code that takes the live locals and the stack's values and goes on at an instruction of the user's code."""
    continuations = _continuations(code)
    return continuations.get(shape) or continuations.setdefault(shape, _make(code, shape))


_RESULT, RECEIVER = "__result", "__receiver"
_ARGUMENT_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_NESTED


def _make(code: CodeType, shape: Shape) -> CodeType:
    graph, region = flow(code), shape.region
    chosen = graph.reachable(shape.index, within=None if region is None else region.members)
    used = names_touched(graph.instructions[i] for i in chosen)[0]
    cells = code.co_freevars + code.co_cellvars
    receiver = receiver_of(code, shape.index, region)
    if receiver is not None:
        used.add("__class__")
    parameters = [RECEIVER] if receiver is not None and receiver not in shape.locals else []
    stack = [f"{ON_STACK}{n}" for n, kind in enumerate(shape.stack) if kind == VALUE]
    parameters += [*shape.locals, *stack]
    freevars = [name for name in cells if name in used]
    end_names = {name for end in region.ends for name in end.names} if region is not None else set()
    others = [n for n in code.co_varnames if n in used | end_names and n not in cells and n not in parameters]
    layout = Layout.of(code)
    line = graph.instructions[shape.index].line or code.co_firstlineno
    suffix = f"resume_at_{line}" if region is None else f"part_at_{line}"
    layout.name, layout.qualname = (f"{n}.{suffix}" for n in (code.co_name, code.co_qualname))
    layout.flags = code.co_flags & ~_ARGUMENT_FLAGS | (inspect.CO_NESTED if freevars else 0)
    layout.argcount, layout.posonly, layout.kwonly = len(parameters), 0, 0
    layout.varnames, layout.cellvars, layout.freevars = parameters + others, [], freevars
    layout.consts, layout.names = [None], []
    position = line_only(graph.instructions[shape.index], code)
    exits = {} if region is None else {end.index: Label() for end in region.ends}
    body = copied(graph, chosen, exits, 0 if region is None else region.base)
    _check_cells(body, code)
    items = _restore(shape, live_names(code, shape.index), len(freevars), position)
    if min(chosen) != shape.index:
        items.append(Instr("JUMP", body.labels[shape.index], 0, position))
    items += body.items
    if region is not None:
        for number, end in enumerate(region.ends):
            items.append(exits[end.index])
            items += _give_back(code, layout, end, number if len(region.ends) > 1 else None)
    items = expand(items, layout)
    new_code = assemble(items, layout)
    indices = tuple(body.indices.get(id(item), -1) for item in items if isinstance(item, Instr))
    _origins(new_code).append(Origin(weakref.ref(code), shape.index, indices, region))
    return new_code


def _restore(shape: Shape, live: frozenset[str], cells: int, position: Position) -> list[Item]:
    """Start of a continuation: unbind what was unbound and may be read, push what was on the stack."""
    items: list[Item] = []

    def add(op: str, arg: object = 0) -> None:
        items.append(Instr(op, arg, 0, position))

    if cells:
        add("COPY_FREE_VARS", cells)
    add("RESUME")
    for name in shape.locals:
        if name in shape.unsure & live:
            bound = Label()
            add("LOAD_FAST", name)
            add("LOAD_CONST", MISSING)
            add("IS_OP", 0)
            add("POP_JUMP_IF_FALSE", bound)
            add("DELETE_FAST", name)
            items.append(bound)
    for n, kind in enumerate(shape.stack):
        if kind == NULL:
            add("PUSH_NULL")
        else:  # as on a stack, nothing else holds the item
            add("LOAD_FAST", f"{ON_STACK}{n}")
            add("DELETE_FAST", f"{ON_STACK}{n}")
    return items


def _give_back(code: CodeType, layout: Layout, end: End, number: int | None) -> list[Item]:
    """End of a region: what the loop gets back."""
    emitter = Emitter(code)
    emitter.position = line_only(flow(code).instructions[end.index], code)
    results: list[str] = []

    def new_result() -> str:
        name = f"{_RESULT}{len(results)}"
        if name not in layout.varnames:
            layout.varnames.append(name)
        results.append(name)
        return name

    stack = []
    for kind in reversed(end.stack):
        temp = new_result()
        emitter.emit("STORE_FAST", temp)  # which takes a NULL, too
        if kind == VALUE:
            stack.append(temp)
    holders = list(end.names)
    for n, name in enumerate(holders):
        if name in end.unsure:
            holders[n] = new_result()
            load_unsure(emitter, name, holders[n])
    if number is not None:
        emitter.load_const(number)
    for name, local in zip(end.names, holders, strict=True):
        if name in end.unread:
            emitter.load_callable(unread)
        emitter.emit("LOAD_FAST", local)
        if name in end.unread:
            emitter.call(1)
    for name in stack:
        emitter.emit("LOAD_FAST", name)
    for name in (*holders, *stack):
        emitter.delete_fast(name)  # an exception that is given back may hold this frame, which must not hold it
    emitter.build_tuple((number is not None) + len(holders) + len(stack))
    emitter.return_value()
    return emitter.items
