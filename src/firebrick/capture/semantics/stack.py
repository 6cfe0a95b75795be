"""Instructions that move values: the stack, locals, cells, globals, names, attributes, imports."""

from __future__ import annotations

import importlib
import sys

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.bytecode.cpython import NULL_BEFORE_CALLABLE
from firebrick.capture.bytecode.instructions import Instruction
from firebrick.capture.bytecode.opcodes import PAIRS
from firebrick.capture.guards.sources import Global, Namespace
from firebrick.capture.semantics.dispatch import HANDLERS, executes
from firebrick.capture.values.base import NULL, Interpreter, Raised, Value
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.function import BoundMethodValue, CellValue
from firebrick.capture.values.mapping import DictValue


@executes("RESUME", "NOP", "CACHE", "PRECALL", "INTERPRETER_EXIT")
def _nothing(interp: Interpreter, at: Instruction) -> None:
    pass


@executes("POP_TOP", "END_FOR")
def _pop_top(interp: Interpreter, at: Instruction) -> None:
    interp.let_go(interp.stack[-1])
    interp.stack.pop()


@executes("SWAP")
def _swap(interp: Interpreter, at: Instruction) -> None:
    stack = interp.stack
    stack[-1], stack[-at.arg] = stack[-at.arg], stack[-1]


_UNBOUND = "where it is not associated with a value"


def _local(interp: Interpreter, name: str) -> Value:
    value = interp.slots.get(name)
    if value is None:
        interp.raise_new(UnboundLocalError, f"cannot access local variable {name!r} {_UNBOUND}")
    return value


def _store(interp: Interpreter, name: str, value: Value) -> None:
    interp.let_go(interp.slots.get(name))
    if value is NULL:
        interp.slots.pop(name, None)
    else:
        interp.slots[name] = value


@executes(*PAIRS)
def _pair(interp: Interpreter, at: Instruction) -> None:
    for op, name in at.parts:
        if op == "LOAD_FAST":
            interp.push(_local(interp, name))
        else:
            _store(interp, name, interp.stack.pop())


@executes("DELETE_FAST")
def _delete_fast(interp: Interpreter, at: Instruction) -> None:
    interp.let_go(_local(interp, at.argval))
    del interp.slots[at.argval]


@executes("COPY_FREE_VARS")
def _copy_free_vars(interp: Interpreter, at: Instruction) -> None:
    interp.slots.update(zip(interp.code.co_freevars, interp.closure, strict=True))


@executes("LOAD_DEREF")
def _load_deref(interp: Interpreter, at: Instruction) -> None:
    cell = interp.cell(at.argval)
    if cell.content is None:
        if at.argval in interp.code.co_freevars:
            interp.raise_new(NameError, f"cannot access free variable {at.argval!r} {_UNBOUND} in enclosing scope")
        interp.raise_new(UnboundLocalError, f"cannot access local variable {at.argval!r} {_UNBOUND}")
    interp.push(cell.content)


@executes("STORE_DEREF")
def _store_deref(interp: Interpreter, at: Instruction) -> None:
    cell = interp.cell(at.argval)
    interp.tracer.effects.mutated(cell)
    cell.content = interp.stack.pop()


@executes("DELETE_DEREF")
def _delete_deref(interp: Interpreter, at: Instruction) -> None:
    _load_deref(interp, at)
    interp.stack.pop()
    cell = interp.cell(at.argval)
    interp.tracer.effects.mutated(cell)
    cell.content = None


def push_callable(interp: Interpreter, value: Value, *, null: bool) -> None:
    """Push what a call will be made of, with its NULL where this version wants it."""
    if null and NULL_BEFORE_CALLABLE:
        interp.push(NULL)
    interp.push(value)
    if null and not NULL_BEFORE_CALLABLE:
        interp.push(NULL)


_NOTES = "__annotations__"


def _named(interp: Interpreter, name: str) -> Value | None:
    return interp.attempt(KeyError, interp.names.get_item, interp, ConstantValue(name))


@executes("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
def _load_name(interp: Interpreter, at: Instruction) -> None:
    if at.opname != "LOAD_NAME":
        interp.stack.pop()
    interp.push(_named(interp, at.argval) or interp.tracer.load_global(interp, at.argval))


@executes("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
def _load_name_or_cell(interp: Interpreter, at: Instruction) -> None:
    if at.opname != "LOAD_CLASSDEREF":
        interp.stack.pop()
    if (value := _named(interp, at.argval)) is not None:
        interp.push(value)
    else:
        _load_deref(interp, at)


@executes("DELETE_NAME")
def _delete_name(interp: Interpreter, at: Instruction) -> None:
    if _named(interp, at.argval) is None:
        interp.raise_new(NameError, f"name {at.argval!r} is not defined")
    interp.names.del_item(interp, ConstantValue(at.argval))


@executes("SETUP_ANNOTATIONS")
def _set_up_annotations(interp: Interpreter, at: Instruction) -> None:
    if _named(interp, _NOTES) is None:
        interp.names.set_item(interp, ConstantValue(_NOTES), DictValue({}))


@executes("STORE_GLOBAL")
def _store_global(interp: Interpreter, at: Instruction) -> None:
    interp.tracer.effects.set_global(interp.globals, at.argval, interp.stack.pop())


@executes("LOAD_ATTR")
def _load_attr(interp: Interpreter, at: Instruction) -> None:
    if at.flag:
        _load_method(interp, at)
        return
    interp.push(interp.pop().get_attr(interp, at.argval))


@executes("LOAD_METHOD")
def _load_method(interp: Interpreter, at: Instruction) -> None:
    _push_method(interp, interp.pop().get_attr(interp, at.argval))


def _push_method(interp: Interpreter, attribute: Value) -> None:
    """Push a method that is about to be called: its function and its owner, or itself beside a NULL."""
    if isinstance(attribute, BoundMethodValue) and attribute.source is None:
        interp.push(attribute.function)
        interp.push(attribute.owner)
    else:
        push_callable(interp, attribute, null=True)


@executes("STORE_ATTR")
def _store_attr(interp: Interpreter, at: Instruction) -> None:
    owner = interp.pop()
    owner.set_attr(interp, at.argval, interp.stack.pop())


@executes("LOAD_SUPER_ATTR")
def _load_super_attr(interp: Interpreter, at: Instruction) -> None:
    owner, cls, super_class = interp.pop(), interp.pop(), interp.pop()
    attribute = super_class.call(interp, [cls, owner], {}).realize().get_attr(interp, at.argval)
    if at.flag & 1:
        _push_method(interp, attribute)
    else:
        interp.push(attribute)


@executes("IMPORT_NAME")
def _import_name(interp: Interpreter, at: Instruction) -> None:
    names, level = interp.pop(), interp.pop()
    package = interp.globals.get("__package__") or interp.globals.get("__name__", "")
    if level.as_constant() and not package:
        raise Break("unsupported-instruction", f"relative import of {at.argval}")
    with interp.raising(ImportError):
        module = __import__(at.argval, interp.globals, {}, names.as_constant() or (), level.as_constant())
    if sys.modules.get(module.__name__) is module:
        interp.tracer.guards.identity(Global(module.__name__, Namespace("sys.modules", sys.modules)), module)
    interp.push(interp.tracer.known(module))


@executes("IMPORT_FROM")
def _import_from(interp: Interpreter, at: Instruction) -> None:
    module = interp.stack[-1].realize()
    try:
        interp.push(module.get_attr(interp, at.argval))
    except Raised:
        with interp.raising(ImportError):
            name = f"{module.as_constant().__name__}.{at.argval}"
            interp.push(interp.tracer.known(importlib.import_module(name)))


HANDLERS.update(
    {
        "MAKE_CELL": lambda interp, at: interp.slots.update(
            {at.argval: CellValue(interp.slots.get(at.argval), at.argval, code=interp.code)}
        ),
        "PUSH_NULL": lambda interp, at: interp.push(NULL),
        "COPY": lambda interp, at: interp.push(interp.stack[-at.arg]),
        "LOAD_CONST": lambda interp, at: interp.push(interp.tracer.code_constant(at.argval)),
        "STORE_FAST": lambda interp, at: _store(interp, at.argval, interp.stack.pop()),
        "DELETE_ATTR": lambda interp, at: interp.pop().del_attr(interp, at.argval),
        "LOAD_ASSERTION_ERROR": lambda interp, at: interp.push(interp.tracer.known(AssertionError)),
        "LOAD_FAST": lambda interp, at: interp.stack.append(_local(interp, at.argval)),
        "LOAD_FAST_CHECK": lambda interp, at: interp.stack.append(_local(interp, at.argval)),
        "LOAD_FAST_AND_CLEAR": lambda interp, at: interp.push(interp.slots.pop(at.argval, NULL)),
        "LOAD_CLOSURE": lambda interp, at: interp.push(interp.slots[at.argval]),
        "LOAD_GLOBAL": lambda interp, at: push_callable(
            interp, interp.tracer.load_global(interp, at.argval), null=bool(at.flag)
        ),
        "STORE_NAME": lambda interp, at: interp.names.set_item(interp, ConstantValue(at.argval), interp.stack.pop()),
        "LOAD_LOCALS": lambda interp, at: interp.push(interp.names),
    }
)
