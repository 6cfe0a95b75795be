"""Going on after a graph break: the rest of the frame as continuation functions.

A broken frame runs the instruction that can't be captured natively, as a copy under the frame's own exception
handlers, and then calls a continuation with the stack and the live locals:

    def f(x):                         def f(x):                          def f.resume_at_3(y, x):
        y = x + 1                         y = __compiled_0(x)                 return y * x
        print(y)            ->            print(y)
        return y * x                      return f.resume_at_3(y, x)

Where control can't leave the frame the copy goes on natively: the whole of a loop around the break (a continuation
inside it would call itself once a round), handlers of exceptions until the exception is dealt with, and the few
instructions after the break that only decide or store. Everything else is a continuation, captured when it is
called. A continuation keeps the user's file, lines and exception handlers, so `try` and `with` blocks that are open
at the break are open in it: what they need is on the stack. Its cells are the frame's own, passed as its closure.
"""

from __future__ import annotations

import inspect
import itertools
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING

from firebrick import _native
from firebrick.capture.assemble import Handler, Instr, Item, Label, Layout, assemble, expand, instr_of
from firebrick.capture.emit import Emitter
from firebrick.capture.flow import HANDLING, NULL, VALUE, Flow, State, flow, is_generator, states
from firebrick.capture.instructions import ByCode, Instruction, slot_names
from firebrick.capture.liveness import live_slots
from firebrick.capture.opcodes import Operand
from firebrick.capture.version import HAS_CHECKED_LOADS
from firebrick.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import CodeType

    from firebrick.capture.tables import Position

__all__ = [
    "HOLDERS",
    "MISSING",
    "Origin",
    "can_break",
    "continuation",
    "emit_break",
    "emit_plain",
    "origin",
    "stack_before",
]


class _Missing:
    """Stands for an unbound local among the arguments of a continuation."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<unbound>"


MISSING = _Missing()
"""Argument of a continuation for a local that may be unbound; its first instructions unbind it again."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a continuation comes from: the user's code, where it goes on, and the user's index of each instruction."""

    code: CodeType
    index: int
    indices: tuple[int, ...]  # -1 for instructions of its own


@dataclass(frozen=True, slots=True)
class _Shape:
    """What tells the continuations of one code object apart."""

    index: int
    stack: str
    locals: tuple[str, ...]
    unsure: frozenset[str]  # those of `locals` that may be MISSING


def _no_continuations(code: CodeType) -> dict[_Shape, CodeType]:
    return {}


def _no_origin(code: CodeType) -> list[Origin]:
    return []


_continuations = ByCode(_no_continuations)
_origins = ByCode(_no_origin)


def origin(code: CodeType) -> Origin | None:
    """Where a continuation comes from; None for the user's own code."""
    found = _origins(code)
    return found[0] if found else None


def can_break(code: CodeType, index: int, stack: Sequence[bool] = ()) -> bool:
    """Whether `emit_break` can go on from before instruction `index`; `stack` tells which items are NULL.

    Not while an exception is dealt with: what is current can't be made again with its traceback and its place.
    """
    if is_generator(code) or index not in states(code):
        return False
    kinds = stack_before(code, index)
    return HANDLING.isdisjoint(kinds) and (not stack or len(stack) == len(kinds))


def emit_break(
    emitter: Emitter,
    code: CodeType,
    index: int,
    stack: Sequence[bool],
    bound: Iterable[str] | None = None,
    through: int = -1,
) -> None:
    """Append the rest of the frame from instruction `index` on, natively where it must and in continuations.

    The state of the machine at the emitter's end must be the frame's own just before that instruction: live locals
    under their names or unbound, cells filled, all of the stack's items pushed. For a call, `index` is the CALL.

    Args:
        emitter: new code for `code`.
        code: the frame's code; it may be a continuation itself.
        index: the instruction that can't be captured.
        stack: for every item on the stack whether it is a NULL.
        bound: the locals that are bound; without it, what is known from the code.
        through: instructions from `index` to this one run natively, because the frame can't be left among them.
    """
    made = _Break(emitter, code, _unit_start(flow(code), index), stack, bound)
    made.stay_through(index, through)
    made.emit()


def emit_plain(emitter: Emitter, code: CodeType) -> Label:
    """Append the frame's own instructions, and give the label of their start: where all is as at the call."""
    graph = flow(code)
    start = 1 + next(i.index for i in graph.instructions if i.opname == "RESUME")
    body = _copy(graph, graph.reachable(start), {})
    for item in body.items:
        emitter.append(item)
    return body.labels[start]


# -- what runs natively ---------------------------------------------------------------

_STORES = frozenset(
    ("NOP", "POP_TOP", "STORE_FAST", "STORE_FAST_STORE_FAST", "STORE_DEREF", "SWAP", "JUMP_FORWARD", "JUMP_BACKWARD")
)
"""Instructions that aren't worth a call: control goes through them before it leaves the frame."""

_BEFORE_RETURN = frozenset(
    ("LOAD_FAST", "LOAD_FAST_LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CONST", "LOAD_DEREF", "BUILD_TUPLE")
    + ("COPY", "NOP", "SWAP")
)
"""Instructions that are left native if nothing but a return comes after them."""

_DECISION = frozenset(
    ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CONST", "LOAD_DEREF", "LOAD_GLOBAL", "LOAD_ATTR", "COMPARE_OP", "IS_OP")
    + ("CONTAINS_OP", "TO_BOOL", "UNARY_NOT", "UNARY_NEGATIVE", "BINARY_OP", "BINARY_SUBSCR", "COPY", "SWAP", "NOP")
)
"""Instructions between the break and a branch that depends on what it gave."""

HOLDERS = frozenset(
    (types.GeneratorType, enumerate, filter, map, zip)
    + (itertools.accumulate, itertools.chain, itertools.compress, itertools.cycle, itertools.dropwhile)
    + (itertools.filterfalse, itertools.groupby, itertools.islice, itertools.pairwise, itertools.starmap)
    + (itertools.takewhile, itertools.zip_longest)
)
"""Iterators that are or may hold a generator."""

_LEAVING = frozenset(("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"))
_CALL_PARTS = frozenset(("KW_NAMES", "PRECALL"))
_LONGEST_DECISION = 12


def _unit_start(graph: Flow, index: int) -> int:
    while index and graph.instructions[index - 1].opname in _CALL_PARTS:
        index -= 1
    return index


def stack_before(code: CodeType, index: int) -> str:
    """Kinds of the stack's items that `emit_break` expects at an instruction, as `flow` names them."""
    return states(code)[_unit_start(flow(code), index)].stack


def _decision_after(graph: Flow, index: int) -> set[int]:
    """The instructions that make a branch of what instruction `index` gives, the branch included."""
    found: set[int] = set()
    while graph.instructions[index].opname in _CALL_PARTS:
        index += 1
    for i in graph.instructions[index + 1 : index + 1 + _LONGEST_DECISION]:
        found.add(i.index)
        if i.is_jump and "_IF_" in i.opname:
            return found
        if i.opname not in _DECISION or (i.opname == "LOAD_ATTR" and i.flag):
            break
    return set()


def _loop_after(graph: Flow, index: int) -> set[int]:
    """The loop over what GET_ITER at `index` gives, with the instructions before it."""
    found: set[int] = set()
    if graph.instructions[index].opname == "GET_ITER":
        for i in graph.instructions[index + 1 : index + 1 + _LONGEST_DECISION]:
            found.add(i.index)
            if i.opname == "FOR_ITER":
                return found | graph.loop_of(i.index)
    return set()


def _is_small(graph: Flow, index: int) -> bool:
    """Whether an instruction is too little to leave the frame for."""
    i = graph.instructions[index]
    if i.opname in _STORES or i.opname in _LEAVING:
        return True
    while i.opname in _BEFORE_RETURN:
        index += 1
        i = graph.instructions[index]
    return i.opname == "RETURN_VALUE"


class _Break:
    """One break of one frame: what runs natively, and its exits."""

    def __init__(
        self, emitter: Emitter, code: CodeType, start: int, stack: Sequence[bool], bound: Iterable[str] | None
    ) -> None:
        self.emitter, self.code, self.start = emitter, code, start
        self.graph = flow(code)
        known = states(code)[start]
        self.cells = sum(self.graph.slots[name] for name in {*code.co_cellvars, *code.co_freevars})
        if len(known.stack) != len(stack):
            raise InternalError(
                f"a break has {len(stack)} items on the stack where {code.co_qualname} has {known.stack!r}"
            )
        kinds = "".join(
            NULL if null else kind if kind in HANDLING else VALUE for null, kind in zip(stack, known.stack, strict=True)
        )
        if bound is None:
            self.state = State(kinds, known.bound, known.maybe)
        else:
            bits = sum(self.graph.slots[name] for name in set(bound) if name in self.graph.slots) | self.cells
            self.state = State(kinds, bits, bits)
        self.stays = self.graph.loop_of(start) | _decision_after(self.graph, start) | _loop_after(self.graph, start)
        self.stays.add(start)
        # Two slots of one name can't be passed by name.
        names = slot_names(code)
        self.whole = len(set(names)) != len(names)
        self.native: set[int] = set()
        self.reached: dict[int, State] = {start: self.state}
        self.kept: int | None = None  # how many items are below an iterator that continuations must not hold

    def stay_through(self, first: int, last: int) -> None:
        """Let these instructions run natively, and the loops that they belong to."""
        graph = self.graph
        for index in range(first, last + 1):
            if index in self.stays:
                continue
            self.stays.add(index)
            if any(before > index for before in graph.predecessors[index]):  # the start of a loop
                self.stays |= graph.loop_of(index)

    def _is_native(self, index: int, state: State) -> bool:
        if self.whole or index in self.stays or not set(state.stack) <= {VALUE, NULL}:
            return True
        if self.kept is not None and len(state.stack) > self.kept:
            return True
        instructions = self.graph.instructions
        source = origin(self.code)
        if source is not None and source.indices[index] < 0:
            return True
        before, op = instructions[index - 1].opname, instructions[index].opname
        if before in _CALL_PARTS or op == "END_FOR" or (before == "END_FOR" and op == "POP_TOP"):
            return True
        if op in ("PRECALL", "CALL") and instructions[index - 1].argval == "super":
            return True  # super() looks at the frame that calls it
        if live_slots(self.code)[index] & self.cells & ~state.bound:
            return True  # a comprehension is about to make a cell of its own in this slot
        return _is_small(self.graph, index)

    def _explore(self) -> None:
        work = [self.start]
        while work:
            index = work.pop()
            state = self.reached[index]
            if not self._is_native(index, state):
                continue
            self.native.add(index)
            handler = self.graph.instructions[index].handler
            if handler is not None:  # only exceptions get there: never a place to go on from
                self.stays.add(handler.target)
            for after, new in self.graph.step(index, state):
                old = self.reached.get(after)
                merged = new if old is None else old.merge(new)
                if merged != old:
                    self.reached[after] = merged
                    work.append(after)

    def emit(self) -> None:
        """Append the native copy and its exits."""
        self._explore()
        exits = {index: Label() for index in sorted(set(self.reached) - self.native)}
        body = _copy(self.graph, self.native, exits)
        if min(self.native) != self.start:
            self.emitter.position, self.emitter.handler = self.graph.instructions[self.start].position, None
            self.emitter.jump(body.labels[self.start])
        for item in body.items:
            self.emitter.append(item)
        for index, label in exits.items():
            self.emitter.place(label)
            if self.graph.instructions[index].opname == "GET_ITER":
                self._stay_for_generator(index, self.reached[index])
            else:
                self._leave(index, self.reached[index])

    def _stay_for_generator(self, index: int, state: State) -> None:
        """Leave, unless a loop is about to begin over an iterator that wants to be let go when the loop ends.

        A continuation that is captured after such a loop was left would not close its generator.
        """
        emitter, stays = self.emitter, Label()
        emitter.handler, emitter.position = None, _line_only(self.graph.instructions[index], self.code)
        emitter.dup()
        emitter.load_attr("__class__")
        emitter.load_const(HOLDERS)
        emitter.emit("CONTAINS_OP", 0)
        emitter.emit("POP_JUMP_IF_TRUE", stays)
        self._leave(index, state)
        emitter.place(stays)
        bound = [name for name, bit in self.graph.slots.items() if state.bound & bit]
        unsure = state.maybe & ~state.bound
        rest = _Break(emitter, self.code, index, [kind == NULL for kind in state.stack], None if unsure else bound)
        rest.kept = len(state.stack) - 1
        rest.emit()

    def _leave(self, index: int, state: State) -> None:
        """Call the continuation at `index` and return what it gives."""
        emitter, graph, code = self.emitter, self.graph, self.code
        emitter.handler = None
        emitter.position = _line_only(graph.instructions[index], code)
        source = origin(code)
        user_code, user_index = (code, index) if source is None else (source.code, source.indices[index])
        receiver = _receiver(user_code, user_index)
        names = self._passed_names(index, state, receiver)
        unsure = frozenset(n for n in names if not state.bound & graph.slots[n])
        made = continuation(user_code, _Shape(user_index, state.stack, tuple(names), unsure))
        # All is moved to temporaries, so that the stack is empty where an unbound local is met.
        stack = [emitter.new_temp() for _ in state.stack]
        for temp in reversed(stack):
            emitter.store_fast(temp)
        stack = [temp for temp, kind in zip(stack, state.stack, strict=True) if kind == VALUE]
        loaded = {name: emitter.new_temp() for name in sorted(unsure)}
        for name, temp in loaded.items():
            self._load_unsure(name, temp)
        emitter.load_callable(_native.go_on)
        for name in made.co_freevars:
            emitter.load_closure(name)
        if made.co_freevars:
            emitter.build_tuple(len(made.co_freevars))
        emitter.make_function(made, 8 if made.co_freevars else 0)
        if receiver is not None and receiver not in names:
            if receiver in graph.slots:
                emitter.load_deref(receiver)
            else:
                emitter.emit("LOAD_FAST", _RECEIVER)
        passed = [loaded.get(name, name) for name in names] + stack
        for name in passed:
            emitter.emit("LOAD_FAST", name)
        for name in passed:  # the continuation owns them now: they live as long as they would have
            emitter.delete_fast(name)
        emitter.build_list(made.co_argcount)
        emitter.call(2)
        emitter.return_value()

    def _passed_names(self, index: int, state: State, receiver: str | None) -> list[str]:
        """Locals that the continuation needs, or lets go of by binding them again; the receiver of `super()` first."""
        code = self.code
        live = (live_slots(code)[index] | self._bound_again(index)) & state.maybe
        cells = {*code.co_cellvars, *code.co_freevars}
        names = [n for n, bit in self.graph.slots.items() if live & bit and n not in cells]
        if receiver in self.graph.slots and receiver not in cells:
            names = [receiver, *(n for n in names if n != receiver)]
        return names

    def _bound_again(self, index: int) -> int:
        """Slots that are written to from an instruction on: what they hold dies there."""
        graph, found = self.graph, 0
        for j in graph.reachable(index):
            i = graph.instructions[j]
            if i.opname.startswith("STORE_FAST"):
                stored = i.argval if isinstance(i.argval, tuple) else (i.argval,)
                for name in stored:
                    found |= graph.slots[name]
        return found

    def _load_unsure(self, name: str, temp: str) -> None:
        """Move a local to a temporary, MISSING if it is unbound."""
        emitter = self.emitter
        caught, done = Label(), Label()
        emitter.handler = Handler(caught, 0, False)
        emitter.emit("LOAD_FAST_CHECK" if HAS_CHECKED_LOADS else "LOAD_FAST", name)
        emitter.handler = None
        emitter.delete_fast(name)
        emitter.jump(done)
        emitter.place(caught)
        emitter.pop()
        emitter.load_const(MISSING)
        emitter.place(done)
        emitter.store_fast(temp)


def _line_only(i: Instruction, code: CodeType) -> Position:
    line = i.position[0] or code.co_firstlineno
    return (line, line, None, None)


def _receiver(code: CodeType, index: int) -> str | None:
    """The first argument, where `super()` without arguments will ask the frame for it."""
    if "__class__" not in code.co_freevars or not code.co_argcount:
        return None
    instructions = flow(code).instructions
    for j in flow(code).reachable(index):
        i = instructions[j]
        if i.opname == "LOAD_SUPER_ATTR":
            asks = not i.flag & 2
        else:
            after = instructions[min(j + 1, len(instructions) - 1)]
            asks = i.argval == "super" and after.opname in ("PRECALL", "CALL") and not after.arg
        if asks:
            return code.co_varnames[0]
    return None


# -- copies of the user's instructions ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Copy:
    items: list[Item]
    labels: dict[int, Label]  # a label before each instruction
    indices: dict[int, int]  # id of a copied instruction -> index of the user's


def _copy(graph: Flow, chosen: set[int], exits: dict[int, Label]) -> _Copy:
    """The chosen instructions in their order; what leads out of them goes to `exits`."""
    instructions = graph.instructions
    labels = {index: Label() for index in chosen}
    places = {**labels, **exits}
    handlers: dict[int, Handler] = {}
    made = _Copy([], labels, {})
    for index in sorted(chosen):
        i = instructions[index]
        handler = None
        if i.handler is not None:
            entry = i.handler
            handler = handlers.get(id(entry))
            if handler is None:
                handler = handlers[id(entry)] = Handler(places[entry.target], entry.depth, entry.lasti)
        instr = instr_of(i, places[i.argval] if i.is_jump else None, handler)
        made.indices[id(instr)] = index
        made.items.extend((labels[index], instr))
        if i.row.falls_through and index + 1 not in chosen:
            made.items.append(Instr("JUMP", places[index + 1], 0, i.position))
    return made


def _check_cells(body: _Copy, code: CodeType) -> None:
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
    graph, found = flow(code), set()
    for name in code.co_cellvars:
        uses = {i.index: i.opname for i in graph.instructions if i.row.operand is Operand.CELL and i.argval == name}
        seen: set[int] = set()
        work = [] if name in code.co_varnames else [0]  # arguments are there from the start
        for index, op in uses.items():
            if op == "DELETE_DEREF":
                work.extend(graph.successors[index])
        while work:
            index = work.pop()
            seen.add(index)
            if uses.get(index) != "STORE_DEREF":
                work.extend(after for after in graph.successors[index] if after not in seen)
        found |= {index for index in seen if uses.get(index) in ("LOAD_DEREF", "DELETE_DEREF")}
    return found


def continuation(code: CodeType, shape: _Shape) -> CodeType:
    """Code that takes the live locals and the stack's values and goes on at an instruction of the user's code."""
    known = _continuations(code)
    made = known.get(shape)
    if made is None:
        made = known[shape] = _make_continuation(code, shape)
    return made


def _make_continuation(code: CodeType, shape: _Shape) -> CodeType:
    graph = flow(code)
    chosen = graph.reachable(shape.index)
    used = _names_used(graph.instructions[i] for i in chosen)
    cells = code.co_freevars + code.co_cellvars
    receiver = _receiver(code, shape.index)
    if receiver is not None:
        used.add("__class__")
    parameters = [_RECEIVER] if receiver is not None and receiver not in shape.locals else []
    stack = [f"{_STACK}{n}" for n, kind in enumerate(shape.stack) if kind == VALUE]
    parameters += [*shape.locals, *stack]
    freevars = [name for name in cells if name in used]
    others = [n for n in code.co_varnames if n in used and n not in cells and n not in parameters]
    layout = Layout.of(code)
    line = graph.instructions[shape.index].line or code.co_firstlineno
    layout.name, layout.qualname = (f"{n}.resume_at_{line}" for n in (code.co_name, code.co_qualname))
    layout.flags = code.co_flags & ~_ARGUMENT_FLAGS | (inspect.CO_NESTED if freevars else 0)
    layout.argcount, layout.posonly, layout.kwonly = len(parameters), 0, 0
    layout.varnames, layout.cellvars, layout.freevars = parameters + others, [], freevars
    layout.consts, layout.names = [None], []
    body = _copy(graph, chosen, {})
    _check_cells(body, code)
    position = _line_only(graph.instructions[shape.index], code)
    items = _restore(shape, len(freevars), position)
    if min(chosen) != shape.index:
        items.append(Instr("JUMP", body.labels[shape.index], 0, position))
    items = expand(items + body.items, layout)
    made = assemble(items, layout)
    indices = tuple(body.indices.get(id(item), -1) for item in items if isinstance(item, Instr))
    _origins(made).append(Origin(code, shape.index, indices))
    return made


_STACK, _RECEIVER = "__stack", "__receiver"
_ARGUMENT_FLAGS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_NESTED


def _restore(shape: _Shape, cells: int, position: Position) -> list[Item]:
    """Start of a continuation: unbind what was unbound, push what was on the stack."""
    items: list[Item] = []

    def add(op: str, arg: object = 0) -> None:
        items.append(Instr(op, arg, 0, position))

    if cells:
        add("COPY_FREE_VARS", cells)
    add("RESUME")
    for name in shape.locals:
        if name in shape.unsure:
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
            add("LOAD_FAST", f"{_STACK}{n}")
            add("DELETE_FAST", f"{_STACK}{n}")
    return items


def _names_used(instructions: Iterable[Instruction]) -> set[str]:
    used: set[str] = set()
    for i in instructions:
        kind = i.row.operand
        if kind is Operand.LOCAL or kind is Operand.CELL:
            used.add(i.argval)
        elif kind is Operand.LOCAL_PAIR:
            used.update(i.argval)
    return used
