"""Parts of loops that can run as functions of their own.

A loop around a graph break runs natively, because control has to come back to it. What its body does between the
break, the head of the loop and the break again is a region: it is entered at one place and left at a few, its ends.
As a function it takes what it reads, gives back what it writes and says at which end it was left:

    for y in ys:                     for y in ys:
        x = x * y + 1       ->           x = f.part_at_3(x, y)
        print(x)                         print(x)

A region holds the handlers of its exceptions until they are dealt with, also those behind the loop, so that an
exception that leaves the function leaves the frame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from firebrick.capture.bytecode.control_flow import HANDLING, NULL, VALUE, Flow, State, live_slots, states
from firebrick.capture.bytecode.instructions import Instruction
from firebrick.capture.bytecode.opcodes import Operand
from firebrick.capture.values.constant import LITERAL_TYPES

_BEFORE_LOOP = frozenset(("LOAD_FAST_AND_CLEAR", "MAKE_CELL", "SWAP", "COPY", "BUILD_LIST", "BUILD_SET", "BUILD_MAP"))
"""Instructions between GET_ITER and FOR_ITER: the start of a comprehension."""

ON_STACK = "__stack"
"""Start of the names of a continuation's parameters for items on the stack."""

_DEEP = frozenset(("SWAP", "COPY", "WITH_EXCEPT_START"))
"""Instructions that touch items below what they take and what their handler left; the last one an `__exit__`."""

_INTO_DEEPER = frozenset(("LIST_APPEND", "SET_ADD", "MAP_ADD"))
_WORTH_A_CALL = ("CALL", "BINARY_", "UNARY_", "COMPARE_OP")
"""Starts of the names of instructions that may run tensor operations."""


@dataclass(frozen=True, slots=True)
class End:
    """A place where control leaves a region."""

    index: int
    stack: str  # kinds of the items above the region's base
    names: tuple[str, ...]  # locals that are given back
    unsure: frozenset[str]  # those that may be unbound
    unread: frozenset[str]  # those whose values nobody will read


@dataclass(frozen=True, slots=True)
class Region:
    """Instructions of a loop that can be a function; indices are those of the code that it was found in."""

    start: int
    base: int  # how many items at the bottom of the stack it leaves alone
    members: frozenset[int]
    ends: tuple[End, ...]
    written: tuple[str, ...]  # locals that it binds or unbinds
    changing: frozenset[str]  # locals that are set from the loop's iterator or from what they were before

    def numbered(self, indices: tuple[int, ...], below: int) -> Region | None:
        """The same in the indices of another code, with `below` more items on the stack; None if a place has none."""
        ends = tuple(End(indices[e.index], e.stack, e.names, e.unsure, e.unread) for e in self.ends)
        if min(end.index for end in ends) < 0:
            return None
        members = frozenset(indices[i] for i in self.members)
        return Region(indices[self.start], self.base + below, members, ends, self.written, self.changing)


def heads_around(graph: Flow, index: int) -> dict[int, frozenset[int]]:
    """Every FOR_ITER whose loop an instruction belongs to, with the instructions of that loop."""
    reaching: dict[int, frozenset[int]] = {}
    for i in graph.instructions:
        if i.opname == "FOR_ITER":
            loop = _rounds_of(graph, i.index)
            if index in loop:
                reaching[i.index] = loop
    return reaching


def _rounds_of(graph: Flow, head: int) -> frozenset[int]:
    """What can come back to a FOR_ITER, and itself."""
    seen, work = {head}, [before for before in graph.predecessors[head] if before > head]
    while work:
        index = work.pop()
        if index not in seen:
            seen.add(index)
            work.extend(graph.predecessors[index])
    return frozenset(seen)


def head_of_loop(graph: Flow, head: int) -> range:
    """From the GET_ITER that a FOR_ITER belongs to, if there is one, to where the item is stored."""
    instructions = graph.instructions
    start, end = head - 1, head + 1
    while instructions[start].opname in _BEFORE_LOOP:
        start -= 1
    while instructions[end].opname.startswith(("STORE_FAST", "STORE_DEREF", "UNPACK_SEQUENCE")):
        end += 1
    return range(start if instructions[start].opname == "GET_ITER" else head, end)


def names_touched(instructions: Iterable[Instruction]) -> tuple[set[str], set[str]]:
    """Locals and cells that instructions use, and the locals that they bind or unbind."""
    used: set[str] = set()
    written: set[str] = set()
    for i in instructions:
        if i.row.operand in (Operand.LOCAL, Operand.LOCAL_PAIR, Operand.CELL):
            used.update(name for _, name in i.parts)
            written.update(name for op, name in i.parts if op in _WRITES)
    return used, written


_WRITES = frozenset(("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"))


def last_on_numbers(
    graph: Flow, index: int, stack: Iterable[bool], names: Iterable[str], variables: Mapping[str, object]
) -> tuple[int, frozenset[str]]:
    """The last of the instructions from `index` on, in a row, that compute with numbers and texts only, or -1.

    Returns:
        It, and the locals that got results, with the place on the stack where one was left, as a local's name.

    Args:
        graph: flow of the code.
        index: the first instruction.
        stack: for every item on the stack whether it is a number or text.
        names: the locals that are.
        variables: the globals.
    """
    items, known, stored = list(stack), set(names), frozenset[str]()
    last, results = -1, stored
    for i in graph.instructions[index:]:
        for step, what in i.parts:
            if step == "LOAD_CONST":
                items.append(type(what) in LITERAL_TYPES)
            elif step in ("LOAD_FAST", "LOAD_FAST_CHECK"):
                items.append(what in known)
            elif step == "LOAD_GLOBAL" and not i.flag:
                items.append(type(variables.get(what)) in LITERAL_TYPES)
            elif step in ("BINARY_OP", "COMPARE_OP") and items[-2:] == [True, True]:
                items.pop()
                last, results = i.index, stored | {f"{ON_STACK}{len(items) - 1}"}
            elif step in ("UNARY_NEGATIVE", "UNARY_NOT", "TO_BOOL") and items[-1:] == [True]:
                last, results = i.index, stored | {f"{ON_STACK}{len(items) - 1}"}
            elif step == "STORE_FAST" and items[-1:] == [True]:
                items.pop()
                known.add(what)
                stored |= {what}
                last, results = i.index, stored
            else:
                break
        else:
            continue
        break
    return last, results


class _Search:
    """The instructions that belong to a region, and what is known before each."""

    def __init__(self, graph: Flow, start: int, state: State, loop: Collection[int], stops: Collection[int]) -> None:
        self.graph, self.loop, self.stops = graph, loop, stops
        self.known: dict[int, State] = {start: state}
        self.members = {start}
        self.caught: set[int] = set()  # where handlers begin
        self.undoing: set[int] = set()  # what handlers without PUSH_EXC_INFO do until they raise again
        heads = [head for head, rounds in heads_around(graph, start).items() if head in stops]
        self.heads = heads
        at = states(graph.code)
        self.floor = max((len(at[head].stack) for head in heads), default=0)
        self.sound = True
        work = [start]
        while work and self.sound:
            index = work.pop()
            for after, new in graph.step(index, self.known[index]):
                self._follow(index, after)
                old = self.known.get(after)
                merged = new if old is None else old.merge(new)
                if merged == old:
                    continue
                self.known[after] = merged
                if self._belongs(after, merged):
                    self.members.add(after)
                    work.append(after)

    def _follow(self, index: int, after: int) -> None:
        instructions = self.graph.instructions
        handler = instructions[index].handler
        caught = handler is not None and handler.target == after
        if caught:
            self.caught.add(after)
        if (caught and instructions[after].opname != "PUSH_EXC_INFO") or (index in self.undoing and not caught):
            self.undoing.add(after)

    def _belongs(self, index: int, state: State) -> bool:
        handling = index in self.undoing or index in self.caught or not HANDLING.isdisjoint(state.stack)
        if index in self.stops:
            self.sound = self.sound and not handling
            return False
        i = self.graph.instructions[index]
        if i.opname in _INTO_DEEPER and len(state.stack) - i.arg - (i.opname == "MAP_ADD") - 1 < self.floor:
            return False
        return handling or index in self.loop

    def base(self) -> int:
        """How many items at the bottom of the stack nothing in the region touches."""
        depths = [self.floor, *(len(state.stack) for state in self.known.values())]
        for index in self.members:
            i = self.graph.instructions[index]
            if i.handler is not None:
                depths.append(i.handler.depth)
            if i.opname in _DEEP:
                depths.append(len(self.known[index].stack) - (i.arg if i.opname != "WITH_EXCEPT_START" else 4))
        return min(depths)


def region_at(
    graph: Flow, start: int, state: State, loop: Collection[int], stops: Collection[int], own: Collection[int]
) -> Region | None:
    """The region of `loop` that begins at an instruction and ends before `stops`; None if there is none worth a call.

    Args:
        graph: flow of the code.
        start: where it is entered.
        state: what is known there.
        loop: the instructions of the loop.
        stops: instructions that run in the loop itself.
        own: instructions that are not the user's.
    """
    code = graph.code
    search = _Search(graph, start, state, loop, {*stops, *own})
    ends = sorted(search.known.keys() - search.members)
    instructions = [graph.instructions[index] for index in sorted(search.members)]
    if not search.sound or not ends or not any(i.opname.startswith(_WORTH_A_CALL) for i in instructions):
        return None
    base = search.base()
    cells = {*code.co_cellvars, *code.co_freevars}
    cell_bits = sum(graph.slots[name] for name in cells)
    written = sorted(names_touched(instructions)[1] - cells)
    live = live_slots(code)
    starts: list[End] = []
    for index in ends:
        at = search.known[index]
        if not set(at.stack[base:]) <= {VALUE, NULL} or live[index] & cell_bits & ~at.bound:
            return None
        names = tuple(name for name in written if graph.slots[name] & at.maybe)
        unsure = frozenset(name for name in names if not graph.slots[name] & at.bound)
        unread = frozenset(name for name in names if not graph.slots[name] & live[index])
        starts.append(End(index, at.stack[base:], names, unsure, unread))
    carried = {name for name in written if graph.slots[name] & live[start] & state.maybe}
    stored = (names_touched(graph.instructions[i] for i in head_of_loop(graph, head))[1] for head in search.heads)
    changing = carried.union(*stored)
    return Region(start, base, frozenset(search.members), tuple(starts), tuple(written), frozenset(changing))
