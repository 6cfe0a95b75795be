"""Rules of copies, weak references, context variables and what asks about the running frame."""

from __future__ import annotations

import contextvars
import copy
import enum
import operator
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

from firebrick import _native
from firebrick.capture.breaks.catalogue import Break, SkipFrame
from firebrick.capture.breaks.continuation import MISSING, unread
from firebrick.capture.guards.sources import Applied, Const, referent
from firebrick.capture.library.known_callables import handles
from firebrick.capture.values.address import WeakReferenceValue, check_held
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value
from firebrick.capture.values.classes import ClassValue
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.exception import ExceptionValue, TracebackValue
from firebrick.capture.values.function import CallableValue, CellValue, FunctionValue
from firebrick.capture.values.mapping import DictValue, SetValue, key_of
from firebrick.capture.values.module import ModuleValue
from firebrick.capture.values.object import BUILTIN_METHODS, MEMBERS, InstanceDictValue, ObjectValue
from firebrick.capture.values.object import MISSING as NOTHING
from firebrick.capture.values.sequence import ListValue, TupleValue


@handles(weakref.ref)
def _reference(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = args[0].realize()
    real = getattr(target, "obj", None)
    with interp.raising(TypeError):
        reference = None if real is None else interp.tracer.objects.get(id(weakref.ref(real)))
    if real is None and not (isinstance(target, ObjectValue) and target.storage is None):
        raise Break("unsupported-call", f"weakref.ref() of {target.describe()}")
    check_held(interp, target)
    if len(args) > 1 and args[1].realize() is not NONE:
        return WeakReferenceValue(target, callback=args[1])
    return reference or interp.tracer.references.setdefault(id(target), WeakReferenceValue(target))


@handles(weakref.proxy)
def _proxy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    target = args[0].realize()
    if getattr(target, "obj", None) is None:  # a continuation would not hold it as long as the frame does
        raise SkipFrame("a weak proxy of a new object is made", always=True)
    raise Break("unsupported-call", f"weakref.proxy() of {target.describe()}")


def read_now(interp: Interpreter, value: Value, function: Callable[[], Any], text: str) -> Value:
    """What a function of a known object returns, as a source that is looked at again at each call."""
    if value.source is not None and not isinstance(value.source, Const):
        interp.tracer.guards.identity(value.source, getattr(value, "obj", None))
    name = getattr(getattr(value, "obj", None), "name", None) or str(value.source)
    return interp.tracer.read(function(), Applied(Const(function, f"{text}[{name!r}]"), operator.call))


@handles(weakref.ref.__dict__["__call__"])
def _call_reference(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].realize()
    if not isinstance(value, ObjectValue) or value.obj is None:
        raise Break("unsupported-call", f"{value.describe()} is called")
    return interp.tracer.read(value.obj(), referent(value.base(interp)))


def _variable(args: Args) -> ObjectValue:
    value = args[0].realize()
    if not isinstance(value, ObjectValue) or not isinstance(value.obj, contextvars.ContextVar):
        raise Break("unsupported-call", f"a method of {value.describe()} is called")
    return value


@handles(contextvars.ContextVar.get)
def _read_variable(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = _variable(args)
    changed = interp.tracer.effects.context_value(value)
    if changed is not None:
        return changed
    try:
        value.obj.get()
    except LookupError as error:
        read_now(interp, value, lambda: value.obj.get(None), "context").realize()
        if len(args) > 1:
            return args[1]
        interp.raise_real(error)
    return read_now(interp, value, value.obj.get, "context")


class TokenValue(Value):
    """What setting a context variable gave; `before` is None where the variable had the value from outside."""

    __slots__ = ("before", "variable")
    cls = contextvars.Token

    def __init__(self, variable: ObjectValue, before: Value | None) -> None:
        self.variable, self.before = variable, before

    def get_attr(self, interp: Interpreter, name: str) -> Value:
        """`var`."""
        return self.variable if name == "var" else super().get_attr(interp, name)


@handles(contextvars.ContextVar.set)
def _set_variable(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = _variable(args)
    token = TokenValue(value, interp.tracer.effects.context_value(value))
    interp.tracer.effects.set_context(value, args[1])
    return token


@handles(contextvars.ContextVar.reset)
def _reset_variable(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value, token = _variable(args), args[1].realize()
    if not isinstance(token, TokenValue) or token.variable is not value:
        raise Break("unsupported-call", "ContextVar.reset() with a token from elsewhere")
    interp.tracer.effects.set_context(value, token.before)
    return NONE


@handles(_native.check_filled)
def _check_filled(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    cell, name = args[0].realize(), args[1].as_constant()
    if isinstance(cell, CellValue) and cell.content is None:
        text = f"cannot access local variable {name!r} where it is not associated with a value"
        interp.raise_new(UnboundLocalError, text)
    return NONE


@handles(sys.exception)
def _exception(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    at: Any = interp
    while at is not None and at.handled is NONE:
        at = at.parent
    return NONE if at is None else at.handled.realize()


@handles(sys.exc_info)
def _exc_info(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    error = _exception(interp, args, kwargs)
    if error is NONE:
        return TupleValue([NONE, NONE, NONE])
    return TupleValue([interp.tracer.known(error.python_type()), error, TracebackValue()])


@handles(unread)
def _unread(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What captured code made and nobody reads need not be made outside of it; so it is the same in each round."""
    return interp.tracer.known(MISSING) if args[0].source is None else args[0]


# -- copies ---------------------------------------------------------------------------------------


@handles(copy.copy)
def _copy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].realize()
    if isinstance(value, (ListValue, DictValue, SetValue)):
        return value.call_method(interp, "copy", [], {})
    if isinstance(value, (ConstantValue, TupleValue, FunctionValue, ClassValue, CallableValue)):
        return value
    if isinstance(value, ObjectValue) and not isinstance(value, (ModuleValue, ExceptionValue)):
        method = value.special(interp, "__copy__")
        if method is not None:
            return method.realize().call(interp, [], {})
        return _copied_object(interp, value)
    raise Break("unsupported-call", f"copy.copy() of {value.describe()}")


def _copied_object(interp: Interpreter, value: ObjectValue) -> Value:
    own = [
        name
        for name in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")
        if isinstance(interp.lookup(value.cls, name)[0], types.FunctionType)
    ]
    if own == ["__getstate__", "__setstate__"] and value.storage is None:  # a frozen dataclass with slots
        blank = ObjectValue(value.cls)
        state = value.call_method(interp, "__getstate__", [], {})
        blank.call_method(interp, "__setstate__", [state], {})
        return blank
    if own:
        raise Break("unsupported-call", f"copy.copy() of {value.describe()}")
    copied = ObjectValue(value.cls)
    if value.storage is not None:
        copied.storage = value.storage
        if isinstance(value.storage, (ListValue, DictValue, SetValue)):
            copied.storage = value.storage.call_method(interp, "copy", [], {})
    lookup, cls = (lambda name: interp.lookup(value.cls, name)[0]), value.cls
    slotted = [vars(base) for base in cls.__mro__ if "__slots__" in vars(base)]
    slots = {n: lookup(n) for own in slotted for n, e in own.items() if isinstance(e, types.MemberDescriptorType)}
    hooks = [lookup(name) for name in ("__getattribute__", "__setattr__")] if slots else []
    if not all(isinstance(entry, (*MEMBERS, *BUILTIN_METHODS)) for entry in (*slots.values(), *hooks)):
        raise Break("unsupported-call", f"copy.copy() of {value.describe()}, whose class handles its slots")
    from_outside = value.obj is not None and cls.__dictoffset__
    for key in [*(interp.iterate(InstanceDictValue(value)) if from_outside else value.fields), *slots]:
        name = key if isinstance(key, str) else key.realize().as_constant()
        field = value.slot(interp, slots[name], name) if name in slots else value.own(interp, name)
        if field is not NOTHING:
            copied.fields[name] = field
    return copied


@handles(copy.deepcopy)
def _deepcopy(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    return _deep(interp, args[0].realize(), {})


def _deep(interp: Interpreter, value: Value, memo: dict[Value, Value]) -> Value:
    value = value.realize()
    earlier = memo.get(value)
    if earlier is not None:
        return earlier
    copy: Value
    if isinstance(value, TupleValue):
        copy = TupleValue([_deep(interp, item, memo) for item in value.items], cls=value.cls)
    elif type(value) is ListValue:
        copy = memo[value] = ListValue([])
        copy.items.extend(_deep(interp, item, memo) for item in value.items)
    elif isinstance(value, DictValue):
        copy = DictValue({}, cls=value.cls, factory=value.factory)
        memo[value] = copy
        for host, (key, item) in value.whole(interp).items():
            copy.entries[host] = (key, _deep(interp, item, memo))
    elif isinstance(value, (ConstantValue, FunctionValue, ClassValue, CallableValue)):
        copy = value
    elif isinstance(value, InstanceDictValue):
        return _deep(interp, value.snapshot(interp), memo)
    elif isinstance(value, SetValue):
        copies = [_deep(interp, item, memo) for item in value.entries.values()]
        copy = SetValue({key_of(copied, interp): copied for copied in copies}, cls=value.cls)
    elif isinstance(value, ObjectValue) and not isinstance(value, (ModuleValue, ExceptionValue)):
        return _deep_object(interp, value, memo)
    else:
        raise Break("unsupported-call", f"copy.deepcopy() of {value.describe()}")
    memo[value] = copy
    return copy


def _deep_object(interp: Interpreter, value: ObjectValue, memo: dict[Value, Value]) -> Value:
    if issubclass(value.cls, enum.Enum):
        return value
    method = value.special(interp, "__deepcopy__")
    if method is not None:
        return method.realize().call(interp, [DictValue({})], {})
    copied = memo[value] = _copied_object(interp, value)
    assert isinstance(copied, ObjectValue)
    if copied.storage is not None:
        copied.storage = _deep(interp, copied.storage, memo)
    for name, field in copied.fields.items():
        copied.fields[name] = _deep(interp, field, memo)
    return copied
