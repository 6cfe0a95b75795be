"""Where control can go in a code object, and what the stack and the slots hold there.

The stack is described by one character an item: `v` a value, `n` a NULL, `e` either of them, `p` the exception that
was current before a handler began, `l` the place that a handler will name when it raises again. Slots are described
by two sets of bits: those that are bound on every path, and those that are bound on some path.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType

from firebrick.capture.bytecode.cpython import NULL_BEFORE_CALLABLE
from firebrick.capture.bytecode.instructions import ByCode, Instruction, decode, slot_names
from firebrick.capture.bytecode.opcodes import Operand
from firebrick.errors import InternalError

VALUE, NULL, EITHER, PREVIOUS, PLACE = "v", "n", "e", "p", "l"
HANDLING = frozenset((PREVIOUS, PLACE))
"""Kinds of stack items that are only there while an exception is handled."""

_CALLS = frozenset(("CALL", "CALL_KW", "CALL_FUNCTION_EX"))


@dataclass(frozen=True, slots=True)
class State:
    """What is known before an instruction runs."""

    stack: str
    bound: int  # slots bound on every path
    maybe: int  # slots bound on some path

    def merge(self, other: State) -> State:
        """What is known where two paths meet; raises InternalError: their stacks differ in depth."""
        if self.stack == other.stack:
            stack = self.stack
        elif len(self.stack) != len(other.stack):
            raise InternalError(f"paths meet with stacks {self.stack!r} and {other.stack!r}")
        else:
            stack = "".join(a if a == b else EITHER for a, b in zip(self.stack, other.stack, strict=True))
        return State(stack, self.bound & other.bound, self.maybe | other.maybe)


class Flow:
    """Successors, predecessors and slots of one code object."""

    __slots__ = ("_code", "instructions", "predecessors", "slots", "successors")

    def __init__(self, code: CodeType) -> None:
        self._code = weakref.ref(code)  # the cache of these goes by it
        self.instructions = decode(code)
        self.slots: dict[str, int] = {}  # name -> bit; the local, where a free variable has the same name
        for i, name in enumerate(slot_names(code)):
            self.slots.setdefault(name, 1 << i)
        self.successors = [tuple(self._successors(i)) for i in self.instructions]
        self.predecessors: list[list[int]] = [[] for _ in self.instructions]
        for i, after in enumerate(self.successors):
            for j in after:
                self.predecessors[j].append(i)

    @property
    def code(self) -> CodeType:
        """The code object, which whoever asks has a reference to."""
        code = self._code()
        assert code is not None
        return code

    def _successors(self, i: Instruction) -> Iterator[int]:
        if i.row.falls_through:
            yield i.index + 1
        if i.is_jump:
            yield i.argval
        if i.handler is not None:
            yield i.handler.target

    def reachable(self, start: int, *, backward: bool = False, within: Collection[int] | None = None) -> set[int]:
        """Instructions that can run after `start` (or before it), and itself; `within` others, if that is given."""
        edges = self.predecessors if backward else self.successors
        seen, work = {start}, [start]
        while work:
            for j in edges[work.pop()]:
                if j not in seen and (within is None or j in within):
                    seen.add(j)
                    work.append(j)
        return seen

    def loop_of(self, index: int) -> set[int]:
        """Instructions that can run both after and before `index`: the outermost loop around it, or nothing."""
        ahead: set[int] = set()
        for j in self.successors[index]:
            if j not in ahead:
                ahead |= self.reachable(j)
        return ahead & self.reachable(index, backward=True) if index in ahead else set()

    def entry(self) -> State:
        """What is known at the start: arguments are bound, cells are there."""
        code = self.code
        flags = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
        arguments = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in flags)
        bound = (1 << arguments) - 1
        for name in code.co_cellvars + code.co_freevars:
            bound |= self.slots[name]
        return State("", bound, bound)

    def step(self, index: int, state: State) -> Iterator[tuple[int, State]]:
        """Every successor of an instruction with what is known there."""
        i = self.instructions[index]
        if i.handler is not None:
            depth = i.handler.depth
            stack = state.stack[:depth] + (PLACE if i.handler.lasti else "") + VALUE
            yield i.handler.target, State(stack, state.bound, state.maybe)
        if i.is_jump:
            yield i.argval, State(_after(i, state.stack, jump=True), state.bound, state.maybe)
        if i.row.falls_through:
            yield index + 1, self._next(i, state)

    def _next(self, i: Instruction, state: State) -> State:
        kind = i.row.operand
        if i.opname == "MAKE_CELL":
            bit = self.slots[i.argval]
            return State(state.stack, state.bound | bit, state.maybe | bit)
        if kind is not Operand.LOCAL and kind is not Operand.LOCAL_PAIR:
            return State(_after(i, state.stack, jump=False), state.bound, state.maybe)
        stack, bound, maybe = state.stack, state.bound, state.maybe
        for op, name in i.parts:
            bit = self.slots[name]
            if op == "DELETE_FAST":
                bound, maybe = bound & ~bit, maybe & ~bit
            elif op == "LOAD_FAST_AND_CLEAR":
                stack += VALUE if bound & bit else EITHER if maybe & bit else NULL
                bound, maybe = bound & ~bit, maybe & ~bit
            elif op != "STORE_FAST":
                stack += VALUE
                bound, maybe = bound | bit, maybe | bit
            else:
                bound, maybe = _stored(stack[-1], bit, bound, maybe)
                stack = stack[:-1]
        return State(stack, bound, maybe)


def _stored(kind: str, bit: int, bound: int, maybe: int) -> tuple[int, int]:
    if kind == NULL:
        return bound & ~bit, maybe & ~bit
    return (bound & ~bit if kind == EITHER else bound | bit), maybe | bit


def _after(i: Instruction, stack: str, *, jump: bool) -> str:
    """The stack after an instruction that doesn't touch a local."""
    op, arg = i.opname, i.arg
    if op == "PUSH_NULL":
        return stack + NULL
    if op == "COPY":
        return stack + stack[-arg]
    if op == "SWAP":
        low, high = stack[-arg], stack[-1]
        return f"{stack[:-arg]}{high}{stack[len(stack) - arg + 1 : -1]}{low}"
    if op == "PUSH_EXC_INFO":
        return stack[:-1] + PREVIOUS + VALUE
    if op == "LOAD_GLOBAL" and i.flag:
        return stack + (NULL + VALUE if NULL_BEFORE_CALLABLE else VALUE + NULL)
    if op == "LOAD_METHOD" or (op == "LOAD_ATTR" and i.flag):
        return stack[:-1] + (EITHER + VALUE if NULL_BEFORE_CALLABLE else VALUE + EITHER)
    if op == "LOAD_SUPER_ATTR" and i.flag & 1:
        return stack[:-3] + (EITHER + VALUE if NULL_BEFORE_CALLABLE else VALUE + EITHER)
    effect = i.row.stack_effect(arg, jump=jump)
    if op in _CALLS:
        return stack[: effect - 1] + VALUE
    return stack + VALUE * effect if effect >= 0 else stack[:effect]


flow = ByCode(Flow)
"""Flow of a code object; made once."""


def spread(reached: dict[int, State], start: int, step: Callable[[int, State], Iterable[tuple[int, State]]]) -> None:
    """Add what is known at all places that are reached from one; `step` gives those behind a place."""
    work = [start]
    while work:
        index = work.pop()
        for after, new in step(index, reached[index]):
            old = reached.get(after)
            merged = new if old is None else old.merge(new)
            if merged != old:
                reached[after] = merged
                work.append(after)


def _states(code: CodeType) -> dict[int, State]:
    graph = flow(code)
    reached = {0: graph.entry()}
    spread(reached, 0, graph.step)
    return reached


states = ByCode(_states)
"""Instruction -> what is known before it, for all that can run; generators are not analysed."""


def is_generator(code: CodeType) -> bool:
    """Whether calling the code makes a generator, coroutine or async generator."""
    return bool(code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))


def _uses(i: Instruction, slots: dict[str, int]) -> tuple[int, int]:
    """Slots that an instruction reads, and those that it writes without reading."""
    read = written = 0
    for op, name in i.parts if i.row.operand in (Operand.LOCAL, Operand.LOCAL_PAIR, Operand.CELL) else ():
        if op == "STORE_FAST":
            written |= slots[name]
        else:
            read |= slots[name] & ~written
    return read, written


def _live(code: CodeType) -> list[int]:
    graph = flow(code)
    instructions = graph.instructions
    uses = [_uses(i, graph.slots) for i in instructions]
    live = [0] * len(instructions)
    work = list(range(len(instructions)))
    queued = [True] * len(instructions)
    while work:
        index = work.pop()
        queued[index] = False
        i = instructions[index]
        after = 0
        if i.row.falls_through:
            after = live[index + 1]
        if i.is_jump:
            after |= live[i.argval]
        read, written = uses[index]
        now = read | after & ~written
        if i.handler is not None:  # may be left before anything was written
            now |= live[i.handler.target]
        if now != live[index]:
            live[index] = now
            for j in graph.predecessors[index]:
                if not queued[j]:
                    queued[j] = True
                    work.append(j)
    return live


live_slots = ByCode(_live)
"""Bits of `flow.slots` that are live before each instruction."""


def live_names(code: CodeType, index: int) -> frozenset[str]:
    """Names of locals and cells that instruction `index` or a later one may read before they are written."""
    live = live_slots(code)[index]
    return frozenset(name for name, bit in flow(code).slots.items() if live & bit)
