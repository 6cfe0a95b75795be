"""Iterators and generators that captured code made."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from firebrick.capture.breaks import Break
from firebrick.capture.values.base import Raised, Value
from firebrick.capture.values.constant import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from firebrick.capture.interpreter import Interpreter
    from firebrick.capture.materialize import ValueEmitter

__all__ = ["GeneratorValue", "IteratorValue"]


class IteratorValue(Value):
    """A built-in iterator (zip, enumerate, map, a list's ...): a host iterator over values."""

    __slots__ = ("cls", "finite", "items", "over")

    def __init__(self, items: Iterator[Value], cls: type, *, over: Sequence[Value] = (), finite: bool = True) -> None:
        super().__init__(None)
        self.items, self.cls, self.over, self.finite = items, cls, over, finite

    def python_type(self) -> type:
        """The iterator's class."""
        return self.cls

    def iterate(self, interp: Interpreter) -> Iterator[Value]:
        """What is left."""
        return self.items

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Bound methods."""
        return interp.method(self, name)

    def call_method(self, interp: Interpreter, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """`__next__` and `__iter__`."""
        if name == "__iter__":
            return self
        if name == "__next__":
            return interp.next_of(self)
        return super().call_method(interp, name, args, kwargs)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """An iterator over a tuple of what is left, if running out its parts has no effect of its own."""
        if not self.finite:
            raise Break("no-reconstruction", f"an endless {self.cls.__name__} leaves the captured code")
        try:
            rest = list(self.items)
        except Raised:
            raise Break("no-reconstruction", f"a {self.cls.__name__} that raises leaves the captured code") from None
        self.items = iter(rest)
        emitter.load_callable(iter)
        for item in rest:
            emitter.load(item)
        emitter.build_tuple(len(rest))
        emitter.call(1)


class GeneratorValue(Value):
    """A generator: an interpreter that is paused at its last yield."""

    __slots__ = ("frame", "running")

    def __init__(self, frame: Interpreter) -> None:
        super().__init__(None)
        self.frame = frame
        self.running = False

    def python_type(self) -> type:
        """Generator."""
        return types.GeneratorType

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

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """Bound methods."""
        return interp.method(self, name)

    def call_method(self, interp: Interpreter, name: str, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """`__next__`, `send`, `throw`, `close`."""
        match name:
            case "__iter__":
                return self
            case "__next__" | "send":
                item = self.frame.resume_generator(args[0] if args else NONE, interp)
                if item is None:
                    result = self.frame.result
                    interp.raise_value(StopIteration, [result] if result is not NONE and result is not None else [])
                return item
            case "throw":
                item = self.frame.throw_generator(args, interp)
                if item is None:
                    result = self.frame.result
                    interp.raise_value(StopIteration, [result] if result is not NONE and result is not None else [])
                return item
            case "close":
                self.frame.close_generator(interp)
                return NONE
        return super().call_method(interp, name, args, kwargs)

    def reconstruct(self, emitter: ValueEmitter) -> None:
        """Only one that has not started could be made again."""
        raise Break("generator-escapes", self.describe())
