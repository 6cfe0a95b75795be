"""Iterators and generators that captured code made."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.values.base import Args, BuiltinValue, Interpreter, Kwargs, Raised, Value, ValueEmitter
from firebrick.capture.values.constant import NONE

if TYPE_CHECKING:
    from firebrick.capture.values.sequence import ListValue


def of_list(over: ListValue, *, backwards: bool = False) -> IteratorValue:
    """An iterator over the items of a list, from the first on or from the last back, that sees the list change."""
    items: Any = reversed(over.items) if backwards else iter(over.items)

    def remake(emitter: ValueEmitter) -> None:
        place = items.__reduce__()[2:]
        if not place:
            emitter.load_call(_iterator_at, (), 0, backwards)
            return
        if over.obj is not None and place[0] > len(over.obj) - backwards:
            raise Break("no-reconstruction", "an iterator that is beyond what its list was")
        emitter.load_call(_iterator_at, over, place[0], backwards)

    return IteratorValue(items, type(items), remake)


def _iterator_at(items: Any, index: int, backwards: bool) -> Any:
    iterator: Any = reversed(items) if backwards else iter(items)
    if items:
        iterator.__setstate__(index)
    return iterator


class IteratorValue(BuiltinValue):
    """A built-in iterator (zip, enumerate, map, a list's ...): a host iterator over values.

    `remake` emits a real one that goes on where this one is; without it what is left is taken at once, which
    nobody sees where the items can't change.
    """

    __slots__ = ("cls", "items", "remake")

    def __init__(self, items: Iterator[Value], cls: type, remake: Callable[[ValueEmitter], None] | None = None) -> None:
        self.items, self.cls, self.remake = items, cls, remake

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """What is left."""
        return self.items

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`__next__` and `__iter__`."""
        if name == "__iter__":
            return self
        if name == "__next__":
            return interp.next_of(self)
        return interp.fallback_method(self, name, args, kwargs)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """A real iterator at the same place, or one over a tuple of what is left."""
        if self.remake is not None:
            self.remake(emitter)
            return
        try:
            rest = list(self.items)
        except Raised:
            raise Break("no-reconstruction", f"a {self.cls.__name__} that raises leaves the captured code") from None
        self.items = iter(rest)
        emitter.load_callable(iter)
        emitter.load_tuple(rest)
        emitter.call(1)


class GeneratorValue(BuiltinValue):
    """A generator: an interpreter that is paused at its last yield."""

    __slots__ = ("cls", "frame", "running")

    def __init__(self, frame: Interpreter) -> None:
        self.frame = frame
        self.running = False
        self.cls: type = types.GeneratorType

    def describe(self) -> str:
        """Its function's name."""
        return f"generator {self.frame.code.co_qualname}"

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """What it yields from here on."""
        while True:
            item = self.frame.resume_generator(NONE, interp)
            if item is None:
                return
            yield item

    def is_paused_in_block(self) -> bool:
        """Whether it waits inside `try` or `with`, so that something happens when it is given up."""
        frame = self.frame
        entry = frame.current.handler
        if frame.finished or not frame.index or entry is None:
            return False
        # since 3.12 every generator has a handler of its own around it, for StopIteration
        return frame.instructions[entry.target].opname != "CALL_INTRINSIC_1"

    def call_method(self, interp: Interpreter, name: str, args: Args, kwargs: Kwargs) -> Value:
        """`__next__`, `send`, `throw`, `close`."""
        match name:
            case "__iter__":
                return self
            case "__next__" | "send":
                item = self.frame.resume_generator(args[0] if args else NONE, interp)
            case "throw":
                item = self.frame.throw_generator(args, interp)
            case "close":
                self.frame.close_generator(interp)
                return NONE
            case _:
                return interp.fallback_method(self, name, args, kwargs)
        if item is None:
            result = self.frame.result
            interp.raise_value(StopIteration, [result] if result is not NONE and result is not None else [])
        return item

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Only one that has not started could be made again."""
        raise Break("generator-escapes", self.describe())
