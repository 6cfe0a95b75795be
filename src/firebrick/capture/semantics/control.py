"""Instructions that decide where to go on: jumps, loops, returns, exceptions, `with`, generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.bytecode.cpython import LOOP_END, SEND_KEEPS_RECEIVER
from firebrick.capture.bytecode.instructions import Instruction
from firebrick.capture.semantics.dispatch import HANDLERS, Signal, executes
from firebrick.capture.values.base import Interpreter, Raised, Value
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.exception import ExceptionValue, TracebackValue
from firebrick.capture.values.iterator import GeneratorValue, IteratorValue
from firebrick.capture.values.scalar import expect, may_be_expected, negated

Condition = Callable[[Interpreter, Value], bool]

# -- jumps ------------------------------------------------------------------------


@executes("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def _jump(interp: Interpreter, at: Instruction) -> None:
    interp.index = at.argval


def _jump_if(condition: Condition, interp: Interpreter, at: Instruction, *, keeps: bool = False) -> None:
    """A jump on a condition of the value on top, which is popped; one that `keeps` it pops it if it does not jump."""
    if condition in _TRUTHS and not keeps:
        value = interp.stack[-1].realize()
        starts = (interp.index, at.argval) if may_be_expected(interp, value) else ()
        raising = [_raises(interp.instructions[start:][:_STRAIGHT]) for start in starts]
        # only one way raises at once, as in `assert` and `if wrong: raise`: the other is taken
        if len({*raising}) == 2:
            jumps = raising[0]
            expect(interp, value if (condition is _CONDITIONS["TRUE"]) is jumps else negated(interp, value))
            interp.stack.pop()
            interp.index = at.argval if jumps else interp.index
            return
    if condition(interp, interp.stack[-1].realize() if keeps else interp.pop()):
        interp.index = at.argval
    elif keeps:
        interp.stack.pop()


_CONDITIONS: Mapping[str, Condition] = {
    "TRUE": lambda interp, value: value.truth(interp), "FALSE": lambda interp, value: not value.truth(interp),
    "NONE": lambda interp, value: value.python_type() is type(None),
    "NOT_NONE": lambda interp, value: value.python_type() is not type(None),
}  # fmt: skip
_TRUTHS = (_CONDITIONS["TRUE"], _CONDITIONS["FALSE"])
_STRAIGHT = 60
"""Instructions that are looked at for a `raise`."""


def _raises(instructions: Sequence[Instruction]) -> bool:
    for one in instructions:
        if one.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in one.opname or one.opname.startswith(
            ("RETURN", "STORE", "YIELD", "FOR_ITER", "SETUP", "BEFORE", "DELETE")
        ):
            return False
    return False


for _name, _condition in _CONDITIONS.items():
    HANDLERS.update(
        {f"POP_JUMP_{way}IF_{_name}": partial(_jump_if, _condition) for way in ("", "FORWARD_", "BACKWARD_")}
    )
for _name in ("TRUE", "FALSE"):
    HANDLERS[f"JUMP_IF_{_name}_OR_POP"] = partial(_jump_if, _CONDITIONS[_name], keeps=True)


def _return(interp: Interpreter, value: Value) -> Signal:
    interp.result, interp.finished = value, True
    return Signal.RETURN


# -- loops --------------------------------------------------------------------------


@executes("FOR_ITER")
def _for_iter(interp: Interpreter, at: Instruction) -> None:
    item = interp.next_or_none(interp.stack[-1])
    if item is None:
        interp.stack.pop()
        interp.index = at.argval + LOOP_END
    else:
        interp.push(item)


# -- exceptions ----------------------------------------------------------------------


@executes("RAISE_VARARGS")
def _raise(interp: Interpreter, at: Instruction) -> None:
    if at.arg == 0:
        if interp.handled is NONE:
            interp.raise_new(RuntimeError, "No active exception to reraise")
        raise Raised(interp.handled)
    cause = _as_exception(interp, interp.pop()) if at.arg == 2 else None
    error = _as_exception(interp, interp.pop())
    if error.python_type() is type(None):
        interp.raise_new(TypeError, "exceptions must derive from BaseException")
    if cause is not None and isinstance(error, ExceptionValue):
        error.store(interp, "__cause__", cause)
    raise Raised(error)


def _as_exception(interp: Interpreter, value: Value) -> Value:
    kind = value.python_type()
    if issubclass(kind, BaseException) or kind is type(None):
        return value
    try:
        cls = value.as_constant()
    except Exception:  # noqa: BLE001  whatever it is, it is no exception class
        cls = None
    if isinstance(cls, type) and issubclass(cls, BaseException):
        return value.call(interp, [], {}).realize()
    interp.raise_new(TypeError, "exceptions must derive from BaseException")


@executes("PUSH_EXC_INFO")
def _push_exc_info(interp: Interpreter, at: Instruction) -> None:
    error = interp.stack.pop()
    interp.push(interp.handled)
    interp.push(error)
    interp.handled = error


@executes("POP_EXCEPT")
def _pop_except(interp: Interpreter, at: Instruction) -> None:
    interp.handled = interp.stack.pop()


@executes("CHECK_EXC_MATCH")
def _check_exc_match(interp: Interpreter, at: Instruction) -> None:
    classes = interp.pop().as_constant()
    interp.push(ConstantValue(interp.is_instance(interp.stack[-1], classes)))


@executes("RERAISE")
def _reraise(interp: Interpreter, at: Instruction) -> None:
    error = interp.pop()
    raise Raised(error)


@executes("CHECK_EG_MATCH")
def _check_eg_match(interp: Interpreter, at: Instruction) -> None:
    classes, error = interp.pop(), interp.pop()
    if error.python_type() is type(None):
        interp.stack.extend((NONE, NONE))
        return
    cls = error.python_type()
    if issubclass(cls, BaseExceptionGroup) and cls not in (BaseExceptionGroup, ExceptionGroup):
        raise Break("unsupported-instruction", f"except* of a {cls.__name__}")
    rest, match = interp.iterate(interp.inline(interp.stand_in("split_group"), [error, classes], {}))
    interp.stack.extend((rest, match))
    if match.python_type() is not type(None):
        interp.handled = match


def reraise_star(interp: Interpreter) -> None:
    """What `except*` blocks left to be raised: nothing, or plain Python joins it."""
    left, _ = interp.pop(), interp.pop()
    if any(item.python_type() is not type(None) for item in interp.iterate(left)):
        raise Break("unsupported-instruction", "except* that leaves exceptions")
    interp.push(NONE)


@executes("BEFORE_WITH")
def _before_with(interp: Interpreter, at: Instruction) -> None:
    manager = interp.pop()
    interp.push(_special(interp, manager, "__exit__"))
    interp.push(_special(interp, manager, "__enter__").realize().call(interp, [], {}))


def _special(interp: Interpreter, manager: Value, name: str) -> Value:
    try:
        return manager.get_attr(interp, name)
    except Raised:
        kind = manager.python_type().__qualname__
        interp.raise_new(TypeError, f"{kind!r} object does not support the context manager protocol")


@executes("WITH_EXCEPT_START")
def _with_except_start(interp: Interpreter, at: Instruction) -> None:
    error = interp.stack[-1].realize()
    leave = interp.stack[-4].realize()
    interp.push(leave.call(interp, [interp.tracer.known(error.python_type()), error, TracebackValue()], {}))


# -- generators -----------------------------------------------------------------------


@executes("SEND")
def _send(interp: Interpreter, at: Instruction) -> None:
    sent = interp.pop()
    receiver = interp.stack[-1].realize()
    try:
        if isinstance(receiver, GeneratorValue):
            item = receiver.frame.resume_generator(sent, interp)
            if item is None:
                _end_of_send(interp, at, receiver.frame.result or NONE)
                return
        elif sent.python_type() is type(None):
            item = interp.next_of(receiver)
        elif isinstance(receiver, IteratorValue):
            interp.raise_new(AttributeError, f"{receiver.cls.__name__!r} object has no attribute 'send'")
        else:
            item = receiver.call_method(interp, "send", [sent], {})
    except Raised as raised:
        if not interp.is_instance(raised.value, StopIteration):
            raise
        _end_of_send(interp, at, raised.value.realize().get_attr(interp, "value"))
        return
    interp.push(item)


def _end_of_send(interp: Interpreter, at: Instruction, result: Value) -> None:
    if not SEND_KEEPS_RECEIVER:
        interp.stack.pop()
    interp.push(result)
    interp.index = at.argval


@executes("END_SEND")
def _end_send(interp: Interpreter, at: Instruction) -> None:
    del interp.stack[-2]


@executes("CLEANUP_THROW")
def _cleanup_throw(interp: Interpreter, at: Instruction) -> None:
    error = interp.pop()
    if interp.is_instance(error, StopIteration):
        del interp.stack[-2:]
        interp.push(NONE)
        interp.push(error.get_attr(interp, "value"))
        return
    raise Raised(error)


HANDLERS.update(
    {
        "GET_ITER": lambda interp, at: interp.push(interp.iterator(interp.pop())),
        "RETURN_VALUE": lambda interp, at: _return(interp, interp.stack.pop()),
        "RETURN_CONST": lambda interp, at: _return(interp, interp.tracer.code_constant(at.argval)),
        "RETURN_GENERATOR": lambda interp, at: interp.push(NONE),  # CPython pops the value that starts it
        "PREP_RERAISE_STAR": lambda interp, at: reraise_star(interp),
        "YIELD_VALUE": lambda interp, at: Signal.YIELD,
        "GET_YIELD_FROM_ITER": lambda interp, at: interp.push(interp.iterator(interp.pop())),
    }
)
