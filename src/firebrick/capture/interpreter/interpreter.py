"""The symbolic interpreter: one object a frame, which executes its instructions on values.

The root interpreter runs the frame that is being captured; calls of Python functions are inlined by
interpreters of their own, whose `parent` leads back to it. A generator is an interpreter that stops
at each yield.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from types import CodeType
from typing import Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.breaks.resume import HOLDERS
from firebrick.capture.bytecode.instructions import Instruction, decode
from firebrick.capture.guards.sources import Local, Namespace
from firebrick.capture.interpreter.services import Operations
from firebrick.capture.semantics.dispatch import HANDLERS, Signal
from firebrick.capture.values.base import NULL, Args, Kwargs, LazyValue, Raised, Tracer, Value
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.exception import ExceptionValue, TracebackValue
from firebrick.capture.values.function import BoundMethodValue, CellValue, FunctionValue, bind_arguments
from firebrick.capture.values.iterator import GeneratorValue
from firebrick.capture.values.module import ModuleValue
from firebrick.errors import UserLocation

_GENERATOR = 0x20
_ASYNC = 0x80 | 0x200
_MAX_DEPTH = 60


class BreakHere(Exception):
    """The root frame has come to the instruction at which this capture is to end."""


class Interpreter(Operations):
    """Symbolic execution of one frame."""

    code: CodeType
    slots: dict[str, Value]

    def __init__(
        self,
        tracer: Tracer,
        code: CodeType,
        variables: dict[str, Any],
        slots: dict[str, Value],
        *,
        parent: Interpreter | None = None,
        closure: Sequence[CellValue] = (),
        namespace: Namespace | None = None,
        function: FunctionValue | None = None,
    ) -> None:
        self.tracer, self.code, self.globals, self.slots = tracer, code, variables, slots
        self.parent, self.closure, self.namespace, self.function = parent, closure, namespace, function
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.instructions = decode(code)
        self.index = 0
        self.current: Instruction = self.instructions[0]
        self.stack: list[Value] = []
        self.names: Value = NONE  # the namespace of the body of a class
        self.keywords: tuple[str, ...] = ()
        self.called: tuple[Instruction, Value] | None = None  # what was called last, and where
        self.handled: Value = NONE  # the exception that an `except` block is dealing with
        self.result: Value | None = None
        self.finished = False
        self.steps = 0
        self.statement_steps: list[int] = []
        module = variables.get("__builtins__", builtins)
        self.builtins: dict[str, Any] = module if isinstance(module, dict) else module.__dict__
        self._callers: tuple[UserLocation, ...] | None = None
        first = slots.get(code.co_varnames[0]) if code.co_varnames else None
        above = "" if parent is None else parent.module
        self.module: str = first.path if isinstance(first, ModuleValue) else above  # whose code this is

    # -- the stack ----------------------------------------------------------------

    def push(self, value: Value) -> None:
        """Put a value on the stack."""
        self.stack.append(value)

    def pop(self) -> Value:
        """Take a value from the stack and look at it."""
        return self.stack.pop().realize()

    def pop_two(self) -> tuple[Value, Value]:
        """Take two values, the lower first, and look at them in this order."""
        right, left = self.stack.pop(), self.stack.pop()
        return left.realize(), right.realize()

    def pop_many(self, count: int) -> list[Value]:
        """Take the last `count` values, the lowest first, without looking at them."""
        if count == 0:
            return []
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def root(self) -> Interpreter:
        """The frame that is captured."""
        frame = self
        while frame.parent is not None:
            frame = frame.parent
        return frame

    # -- running --------------------------------------------------------------------

    def run(self) -> Value:
        """Execute to the end of the frame and give what it returns."""
        while self.step() is not Signal.RETURN:
            pass
        assert self.result is not None
        return self.result

    def run_root(self, break_step: int | None) -> Value:
        """Execute the root frame and count `steps`; raises BreakHere: `break_step` of them are executed."""
        while True:
            if self.steps == break_step:
                self.current = self.instructions[self.index]
                raise BreakHere
            if not self.stack:
                self.statement_steps.append(self.steps)
            if self.step() is Signal.RETURN:
                assert self.result is not None
                return self.result
            self.steps += 1

    def step(self) -> Signal | None:
        """Execute one instruction; exceptions of the user's program go to its handlers."""
        instruction = self.current = self.instructions[self.index]
        self.index += 1
        handler = HANDLERS.get(instruction.opname)
        if handler is None:
            raise self.located(Break("unsupported-instruction", instruction.opname))
        try:
            return handler(self, instruction)
        except Raised as raised:
            self.unwind(raised, instruction)
            return None
        except Break as error:
            raise self.located(error) from error.__cause__
        except RecursionError:
            raise self.located(Break("recursion", self.code.co_qualname)) from None

    def located(self, error: Break) -> Break:
        """Give a break its place, unless an inner frame has."""
        if not error.stack:
            error.stack = self.user_stack()
        return error

    def unwind(self, raised: Raised, instruction: Instruction) -> None:
        """Go to the handler of an exception, or out of the frame."""
        value = raised.value
        if isinstance(value, ExceptionValue):
            if value.traceback is NONE:
                value.traceback = TracebackValue()
            if value is not self.handled and value.context is NONE:
                value.context = self.handled
        entry = instruction.handler
        if entry is None:
            self.finished = True
            try:
                raise raised
            finally:
                del raised  # its traceback holds this frame, which must not hold it
        if self.parent is None:
            self.tracer.raise_steps.append(self.steps)
        while len(self.stack) > entry.depth:
            try:
                self.let_go(self.stack[-1])
            except Break as error:
                raise self.located(error) from None
            self.stack.pop()
        if entry.lasti:
            self.push(ConstantValue(instruction.index))
        self.push(value)
        self.index = entry.target

    def is_caught(self) -> bool:
        """Whether an exception now would meet a handler."""
        at: Interpreter | None = self
        while at is not None and at.current.handler is None:
            at = at.parent
        return at is not None

    def is_watched(self) -> bool:
        """Whether an exception now would meet a handler, or leave effects behind."""
        return self.is_caught() or bool(self.tracer.effects.outside)

    def caller(self) -> Interpreter | None:
        """The frame of Python code that has called this one, where no other can stand between them."""
        at, function = (self.parent and self.parent.called) or (None, NONE)
        function = function.function.realize() if isinstance(function, BoundMethodValue) else function
        return self.parent if self.parent and at is self.parent.current and function is self.function else None

    # -- places -----------------------------------------------------------------------

    def location(self) -> UserLocation:
        """Where the current instruction is in the user's code."""
        at = self.current
        return UserLocation(self.code.co_filename, at.line, at.column, self.code.co_qualname)

    def user_stack(self) -> tuple[UserLocation, ...]:
        """Where the frames are, the innermost last."""
        if self._callers is None:
            self._callers = () if self.parent is None else self.parent.user_stack()
        return (*self._callers, self.location())

    # -- variables ----------------------------------------------------------------------

    def cell(self, name: str) -> CellValue:
        """The cell in a slot."""
        cell = self.slots[name]
        assert isinstance(cell, CellValue), name
        return cell

    def let_go(self, old: Value | None) -> None:
        """What the frame lets go of may end here, and that be seen: a generator is closed, `__del__` is called; raises
        Break: it was an argument, and no other place of the frame holds it."""
        if self.parent is not None or type(old) is not LazyValue or not isinstance(old.source, Local):
            return
        kind = type(old.obj)
        references = (*self.stack, *self.slots.values())
        if (kind in HOLDERS or hasattr(kind, "__del__")) and sum(value is old for value in references) < 2:
            raise Break("unsupported-operation", f"{old.source}, whose end may do something, is let go")

    # -- calls --------------------------------------------------------------------------

    def _frame(self, function: FunctionValue, slots: dict[str, Value]) -> Interpreter:
        if self.depth >= _MAX_DEPTH:
            raise Break("recursion", function.describe())
        return Interpreter(
            self.tracer,
            function.code,
            function.globals,
            slots,
            parent=self,
            closure=function.closure,
            namespace=self.tracer.namespace(function.globals),
            function=function,
        )

    def run_body(self, function: FunctionValue, namespace: Value) -> Value:
        """Run the body of a class, which fills a namespace; the cell that is to hold the class, or None."""
        frame = self._frame(function, {})
        frame.names = namespace
        return self._run_inner(frame)

    def _run_inner(self, frame: Interpreter) -> Value:
        self.tracer.innermost = frame
        try:
            return frame.run()
        finally:
            self.tracer.innermost = self

    def inline(self, function: FunctionValue, args: Args, kwargs: Kwargs) -> Value:
        """Run a Python function symbolically in a frame of its own."""
        self.tracer.check_inline(function)
        code = function.code
        frame = self._frame(function, bind_arguments(self, function, args, kwargs))
        if code.co_flags & _ASYNC:
            raise Break("unsupported-call", f"{function.describe()} is async")
        if code.co_flags & _GENERATOR:
            generator = GeneratorValue(frame)
            self.tracer.generators.append((self.root().steps, generator))
            return generator
        return self._run_inner(frame)

    # -- generators -----------------------------------------------------------------------

    def resume_generator(self, sent: Value, caller: Interpreter) -> Value | None:
        """Run to the next yield and give its value; None at the end, with `result` set."""
        if self.finished:
            self.result = NONE
            return None
        self.parent, self.depth, self._callers = caller, caller.depth + 1, None
        if self.depth >= _MAX_DEPTH:
            raise Break("recursion", self.code.co_qualname)
        if self.index > 0:
            self.push(sent)
        return self._to_yield()

    def _to_yield(self) -> Value | None:
        while True:
            try:
                signal = self.step()
            except Raised as raised:
                self.finished = True
                if self.is_instance(raised.value, StopIteration):
                    self.raise_new(RuntimeError, "generator raised StopIteration")
                raise
            if signal is Signal.YIELD:
                return self.stack.pop()
            if signal is Signal.RETURN:
                self.finished = True
                return None

    def throw_generator(self, args: Args, caller: Interpreter) -> Value | None:
        """Raise an exception at the yield where the generator is paused."""
        error = args[-1 if len(args) == 1 else 1].realize()
        if not isinstance(error, ExceptionValue):  # a class, and perhaps the argument that it is called with
            error = args[0].realize().call(self, [] if error is NONE else args[1:2], {})
        if self.finished or self.index == 0:
            self.finished = True
            raise Raised(error)
        self.parent, self.depth, self._callers = caller, caller.depth + 1, None
        self.unwind(Raised(error), self.current)  # which finishes it where nothing handles the exception
        return self._to_yield()

    def close_generator(self, caller: Interpreter) -> None:
        """`generator.close()`."""
        if self.finished or self.index == 0:
            self.finished = True
            return
        try:
            item = self.throw_generator([ExceptionValue(GeneratorExit, [])], caller)
        except Raised as raised:
            if not self.is_instance(raised.value, (GeneratorExit, StopIteration)):
                raise
            return
        if item is not None:
            self.raise_new(RuntimeError, "generator ignored GeneratorExit")

    # -- calls from the stack ---------------------------------------------------------------

    def call_on_stack(self, count: int) -> None:
        """The CALL instruction: callable, NULL or self, arguments."""
        args = self.pop_many(count)
        second, first = self.stack.pop(), self.stack.pop()
        keywords, self.keywords = self.keywords, ()
        positional = count - len(keywords)
        kwargs = dict(zip(keywords, args[positional:], strict=True)) if keywords else {}
        args = args[:positional] if keywords else args
        if first is not NULL and second is not NULL:
            args = [second, *args]
        function = (second if first is NULL else first).realize()
        self.called = self.current, function
        self.push(function.call(self, args, kwargs))
