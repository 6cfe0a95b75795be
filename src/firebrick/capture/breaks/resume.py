"""Going on after a graph break: the rest of the frame as continuation functions.

A broken frame runs the instruction that can't be captured natively, as a copy under the frame's own exception
handlers, and then calls a continuation with the stack and the live locals:

    def f(x):                         def f(x):                          def f.resume_at_3(y, x):
        y = x + 1                         y = __compiled_0(x)                 return y * x
        print(y)            ->            print(y)
        return y * x                      return f.resume_at_3(y, x)

Where control can't leave the frame the copy goes on natively: a loop around the break (a continuation inside it
would call itself once a round), handlers of exceptions until the exception is dealt with, and the few instructions
after the break that only decide or store. What a loop's body does between such instructions is a function of its own
(`regions.py`), called in each round. Everything else is a continuation, captured when it is called.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import CodeType

from firebrick import _native
from firebrick.capture.breaks.continuation import (
    MISSING,
    RECEIVER,
    Shape,
    continuation,
    copied,
    line_only,
    load_unsure,
    origin,
    receiver_of,
)
from firebrick.capture.breaks.regions import End, Region, head_of_loop, heads_around, names_touched, region_at
from firebrick.capture.bytecode.assemble import Label
from firebrick.capture.bytecode.control_flow import (
    HANDLING,
    NULL,
    VALUE,
    Flow,
    State,
    flow,
    is_generator,
    live_slots,
    spread,
    states,
)
from firebrick.capture.bytecode.instructions import slot_names
from firebrick.capture.emit.writer import Emitter
from firebrick.errors import InternalError


def can_break(code: CodeType, index: int, stack: Sequence[bool] = ()) -> bool:
    """Whether `emit_break` can go on from before instruction `index`; `stack` tells which items are NULL.

    Not while an exception is dealt with: what is current can't be made again with its traceback and its place.
    """
    if is_generator(code) or index not in states(code):
        return False
    kinds = states(code)[_unit_start(flow(code), index)].stack
    return HANDLING.isdisjoint(kinds) and (not stack or len(stack) == len(kinds))


def emit_break(
    emitter: Emitter,
    code: CodeType,
    index: int,
    stack: Sequence[bool],
    bound: Iterable[str] | None = None,
    through: int = -1,
    changing: frozenset[str] = frozenset(),
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
        changing: in a part of a loop, locals and items on the stack that are then other numbers in each round.
    """
    result = _Break(emitter, code, _unit_start(flow(code), index), stack, bound)
    result.stay_through(index, through)
    result.changing = changing
    result.emit()


def emit_plain(emitter: Emitter, code: CodeType) -> Label:
    """Append the frame's own instructions, and give the label of their start: where all is as at the call."""
    graph = flow(code)
    start = 1 + next(i.index for i in graph.instructions if i.opname == "RESUME")
    body = copied(graph, graph.reachable(start), {})
    emitter.items.extend(body.items)
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


def _decision_after(graph: Flow, index: int) -> set[int]:
    """The instructions that make a branch of what instruction `index` gives, the branch included."""
    indices: set[int] = set()
    while graph.instructions[index].opname in _CALL_PARTS:
        index += 1
    for i in graph.instructions[index + 1 : index + 1 + _LONGEST_DECISION]:
        indices.add(i.index)
        if i.is_jump and "_IF_" in i.opname:
            return indices
        if i.opname not in _DECISION or (i.opname == "LOAD_ATTR" and i.flag):
            break
    return set()


def _loop_after(graph: Flow, index: int) -> tuple[set[int], int]:
    """The loop over what GET_ITER at `index` gives, with the instructions before it, and its FOR_ITER."""
    indices: set[int] = set()
    if graph.instructions[index].opname == "GET_ITER":
        for i in graph.instructions[index + 1 : index + 1 + _LONGEST_DECISION]:
            indices.add(i.index)
            if i.opname == "FOR_ITER":
                return indices | graph.loop_of(i.index), i.index
    return set(), index


def _test_of_rounds(graph: Flow, index: int) -> int | None:
    """Where a `while` loop that the instruction is a part of the test before does the same at the end of a round."""
    test = graph.instructions[index]
    for i in graph.instructions[index + 1 :] if test.column else ():
        same = i.position == test.position and (i.opname == test.opname or (i.is_jump and test.is_jump))
        if same and index not in (graph.loop_of(i.index) or {index}) and i.index in graph.reachable(index):
            return i.index
    return None


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
        state = states(code)[start]
        self.cells = sum(self.graph.slots[name] for name in {*code.co_cellvars, *code.co_freevars})
        if len(state.stack) != len(stack):
            raise InternalError(f"a break's stack has {len(stack)} items, that of {code.co_qualname} {state.stack!r}")
        kinds = "".join(
            NULL if null else kind if kind in HANDLING else VALUE for null, kind in zip(stack, state.stack, strict=True)
        )
        if bound is None:
            self.state = State(kinds, state.bound, state.maybe)
        else:
            bits = sum(self.graph.slots[name] for name in set(bound) if name in self.graph.slots) | self.cells
            self.state = State(kinds, bits, bits)
        self.stays = _decision_after(self.graph, start) | {start}
        self.loop: set[int] = set()
        self._stay_in_loop(self.graph.loop_of(start), start)
        if (again := _test_of_rounds(self.graph, start)) is not None:  # will break as well
            self.stays |= _decision_after(self.graph, again) | {again}
            self._stay_in_loop(self.graph.loop_of(again), again)
        # Two slots of one name can't be passed by name.
        names = slot_names(code)
        self.whole = len(set(names)) != len(names)
        source = origin(code)
        self.own = {n for n, index in enumerate(source.indices) if index < 0} if source is not None else set()
        if source is not None and start in self.own:  # in its prologue, from where it must not go on in itself
            self.stays.add(source.indices.index(source.index))
        self.changing: frozenset[str] = frozenset()
        self.native: set[int] = set()
        self.caught: set[int] = set()  # handlers of what runs natively: never a place to go on from
        self.regions: dict[int, tuple[Region, Region]] = {}  # and in the indices of the user's code
        self.reached: dict[int, State] = {start: self.state}
        self.kept: int | None = None  # how many items are below an iterator that continuations must not hold

    def _stay_in_loop(self, loop: set[int], index: int) -> None:
        """Let a loop run natively, with its iterators; what is between them can be regions."""
        self.loop |= loop
        graph = self.graph
        for head in heads_around(graph, index):
            self.stays.update(head_of_loop(graph, head))
        after, head = _loop_after(graph, index)
        if after:
            self.loop |= after
            self.stays.update(head_of_loop(graph, head))

    def stay_through(self, first: int, last: int) -> None:
        """Let these instructions run natively, and the loops that they belong to."""
        graph = self.graph
        for index in range(first, last + 1):
            if index in self.stays:
                continue
            self.stays.add(index)
            if any(before > index for before in graph.predecessors[index]):  # the start of a loop
                self._stay_in_loop(graph.loop_of(index), index)

    def _must_stay(self, index: int, state: State) -> bool:
        """Whether control can't leave the frame before an instruction."""
        if self.whole or index in self.stays or index in self.caught or index in self.own:
            return True
        if not set(state.stack) <= {VALUE, NULL}:
            return True
        instructions = self.graph.instructions
        before, op = instructions[index - 1].opname, instructions[index].opname
        if before in _CALL_PARTS or op == "END_FOR" or (before == "END_FOR" and op == "POP_TOP"):
            return True
        if op in ("PRECALL", "CALL") and instructions[index - 1].argval == "super":
            return True  # super() looks at the frame that calls it
        # a comprehension may be about to make a cell of its own in this slot
        return bool(live_slots(self.code)[index] & self.cells & ~state.bound)

    def _is_native(self, index: int, state: State) -> bool:
        if index in self.native or self._must_stay(index, state) or _is_small(self.graph, index):
            return True
        if index in self.loop:
            if self.graph.instructions[index].opname == "GET_ITER":
                self._stay_in_loop(set(), index)
                return True
            region = self._region_at(index, state)
            if region is None:
                self.regions.pop(index, None)
                return True
            self.regions[index] = region
            return False
        return self.kept is not None and len(state.stack) > self.kept

    def _region_at(self, index: int, state: State) -> tuple[Region, Region] | None:
        region = region_at(self.graph, index, state, self.loop, self.stays, self.own)
        if region is None:
            return None
        source = origin(self.code)
        if source is None:
            return region, region
        numbered = region.numbered(source.indices, source.region.base if source.region is not None else 0)
        return None if numbered is None else (region, numbered)

    def _behind(self, region: Region, state: State) -> Iterable[tuple[int, State]]:
        """The ends of a region with what is known there."""
        slots = self.graph.slots
        others = ~sum(slots[name] for name in region.written)
        for end in region.ends:
            maybe = sum(slots[name] for name in end.names)
            bound = maybe - sum(slots[name] for name in end.unsure)
            stack = state.stack[: region.base] + end.stack
            yield end.index, State(stack, state.bound & others | bound, state.maybe & others | maybe)

    def _step(self, index: int, state: State) -> Iterable[tuple[int, State]]:
        if self._is_native(index, state):
            self.native.add(index)
            handler = self.graph.instructions[index].handler
            if handler is not None:
                self.caught.add(handler.target)
            return self.graph.step(index, state)
        return self._behind(self.regions[index][0], state) if index in self.regions else ()

    def emit(self) -> None:
        """Append the native copy and its exits."""
        spread(self.reached, self.start, self._step)
        exits = {index: Label() for index in sorted(set(self.reached) - self.native)}
        body = copied(self.graph, self.native, exits)
        if min(self.native) != self.start:
            self.emitter.position, self.emitter.handler = self.graph.instructions[self.start].position, None
            self.emitter.jump(body.labels[self.start])
        self.emitter.items.extend(body.items)
        for index, label in exits.items():
            self.emitter.place(label)
            if index in self.regions:
                self._call_region(index, self.reached[index], {**body.labels, **exits})
            elif self.graph.instructions[index].opname == "GET_ITER":
                self._stay_for_generator(index, self.reached[index])
            else:
                self._leave(index, self.reached[index])

    def _stay_for_generator(self, index: int, state: State) -> None:
        """Leave, unless a loop is about to begin over an iterator that wants to be let go when the loop ends.

        A continuation that is captured after such a loop was left would not close its generator.
        """
        emitter, stays = self.emitter, Label()
        emitter.handler, emitter.position = None, line_only(self.graph.instructions[index], self.code)
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
        graph, code = self.graph, self.code
        source = origin(code)
        user_code, user_index, region = code, index, None
        if source is not None:
            user_code, user_index, region = source.code, source.indices[index], source.region
            if region is not None:
                region = replace(region, changing=region.changing | self.changing)
        receiver = receiver_of(user_code, user_index, region)
        written = names_touched(graph.instructions[j] for j in graph.reachable(index))[1]  # what they hold dies there
        live = (live_slots(code)[index] | sum(graph.slots[name] for name in written)) & state.maybe
        names = self._passed_names({n for n, bit in graph.slots.items() if live & bit}, receiver)
        shape = Shape(user_index, state.stack, names, self._unsure(names, state), region)
        rest_code = continuation(user_code, shape)
        self._call(rest_code, shape, index, receiver, names, 0)
        self.emitter.return_value()

    def _call_region(self, index: int, state: State, places: dict[int, Label]) -> None:
        """Call a region of a loop and go on where it ends."""
        emitter, graph, source = self.emitter, self.graph, origin(self.code)
        own, region = self.regions[index]
        user_code = self.code if source is None else source.code
        receiver = receiver_of(user_code, region.start, region)
        used, _ = names_touched(graph.instructions[i] for i in own.members)
        names = self._passed_names({n for n in used if graph.slots[n] & state.maybe}, receiver)
        shape = Shape(region.start, state.stack[own.base :], names, self._unsure(names, state), region)
        rest = continuation(user_code, shape)
        self._call(rest, shape, index, receiver, [name for name in names if name in region.written], own.base)
        ends = own.ends
        for number, end in enumerate(ends):
            other = Label()
            if number + 1 < len(ends):
                emitter.dup()
                emitter.load_const(0)
                emitter.load_subscr()
                emitter.load_const(number)
                emitter.compare_op("==")
                emitter.emit("POP_JUMP_IF_FALSE", other)
            emitter.unpack_sequence((len(ends) > 1) + len(end.names) + end.stack.count(VALUE))
            if len(ends) > 1:
                emitter.pop()
            self._take_back(end)
            emitter.jump(places[end.index])
            emitter.place(other)

    def _take_back(self, end: End) -> None:
        """Bind the locals that a region gives back, and complete the stack."""
        emitter = self.emitter
        for name in end.names:
            emitter.emit("STORE_FAST", name)
            if name in end.unsure:
                bound = Label()
                emitter.emit("LOAD_FAST", name)
                emitter.load_const(MISSING)
                emitter.emit("IS_OP", 0)
                emitter.emit("POP_JUMP_IF_FALSE", bound)
                emitter.delete_fast(name)
                emitter.place(bound)
        if NULL in end.stack:
            temps = [emitter.new_temp() for kind in end.stack if kind == VALUE]
            for temp in reversed(temps):
                emitter.store_fast(temp)
            values = iter(temps)
            for kind in end.stack:
                if kind == NULL:
                    emitter.push_null()
                else:
                    temp = next(values)
                    emitter.load_fast(temp)
                    emitter.delete_fast(temp)

    def _call(
        self, new_code: CodeType, shape: Shape, index: int, receiver: str | None, moved: Sequence[str], below: int
    ) -> None:
        """Call new code with locals and the stack's items above the `below` lowest; `moved` locals become unbound."""
        emitter = self.emitter
        emitter.handler = None
        emitter.position = line_only(self.graph.instructions[index], self.code)
        # The items are moved to temporaries, so that their place is empty where an unbound local is met.
        stack = [emitter.new_temp() for _ in shape.stack]
        for temp in reversed(stack):
            emitter.store_fast(temp)
        stack = [temp for temp, kind in zip(stack, shape.stack, strict=True) if kind == VALUE]
        loaded = {name: emitter.new_temp() for name in sorted(shape.unsure)}
        for name, temp in loaded.items():
            load_unsure(emitter, name, temp, below, keep=name not in moved)
        emitter.load_callable(_native.go_on)
        for name in new_code.co_freevars:
            emitter.load_closure(name)
        if new_code.co_freevars:
            emitter.build_tuple(len(new_code.co_freevars))
        emitter.make_function(new_code, 8 if new_code.co_freevars else 0)
        if receiver is not None and receiver not in shape.locals:
            if receiver in self.graph.slots:
                emitter.load_deref(receiver)
            else:
                emitter.emit("LOAD_FAST", RECEIVER)
        for name in (*shape.locals, *stack):
            emitter.emit("LOAD_FAST", loaded.get(name, name))
        # what is called owns them now: they live as long as they would have
        for name in (*loaded.values(), *(name for name in moved if name not in loaded), *stack):
            emitter.delete_fast(name)
        emitter.build_list(new_code.co_argcount)
        emitter.call(2)

    def _unsure(self, names: tuple[str, ...], state: State) -> frozenset[str]:
        return frozenset(name for name in names if not state.bound & self.graph.slots[name])

    def _passed_names(self, wanted: set[str], receiver: str | None) -> tuple[str, ...]:
        """The locals among `wanted` in their order, the receiver of `super()` first."""
        cells = {*self.code.co_cellvars, *self.code.co_freevars}
        names = [name for name in self.graph.slots if name in wanted and name not in cells]
        if receiver in self.graph.slots and receiver not in cells:
            names = [receiver, *(name for name in names if name != receiver)]
        return tuple(names)
