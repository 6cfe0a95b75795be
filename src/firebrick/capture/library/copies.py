"""Rules of `copy.copy` and `copy.deepcopy`."""

from __future__ import annotations

import copy
import enum
import types
from typing import TYPE_CHECKING

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.library.known_callables import handles
from firebrick.capture.values.classes import ClassValue
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.exception import ExceptionValue
from firebrick.capture.values.function import CallableValue, FunctionValue
from firebrick.capture.values.mapping import DictValue, SetValue, key_of
from firebrick.capture.values.module import ModuleValue
from firebrick.capture.values.object import MISSING, InstanceDictValue, ObjectValue
from firebrick.capture.values.sequence import ListValue, TupleValue

if TYPE_CHECKING:
    from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value


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
    for key in list(interp.iterate(InstanceDictValue(value))) if value.obj is not None else list(value.fields):
        name = key if isinstance(key, str) else key.realize().as_constant()
        field = value.own(interp, name)
        if field is not MISSING:
            copied.fields[name] = field
    return copied


handles(copy.deepcopy)(lambda interp, args, kwargs: _deep(interp, args[0].realize(), {}))


def _deep(interp: Interpreter, value: Value, memo: dict[int, Value]) -> Value:
    value = value.realize()
    earlier = memo.get(id(value))
    if earlier is not None:
        return earlier
    copy: Value
    if isinstance(value, TupleValue):
        copy = TupleValue([_deep(interp, item, memo) for item in value.items], cls=value.cls)
    elif type(value) is ListValue:
        copy = memo[id(value)] = ListValue([])
        copy.items.extend(_deep(interp, item, memo) for item in value.items)
    elif isinstance(value, DictValue):
        copy = DictValue({}, cls=value.cls, factory=value.factory)
        memo[id(value)] = copy
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
    memo[id(value)] = copy
    return copy


def _deep_object(interp: Interpreter, value: ObjectValue, memo: dict[int, Value]) -> Value:
    if issubclass(value.cls, enum.Enum):
        return value
    method = value.special(interp, "__deepcopy__")
    if method is not None:
        return method.realize().call(interp, [DictValue({})], {})
    copied = memo[id(value)] = _copied_object(interp, value)
    assert isinstance(copied, ObjectValue)
    if copied.storage is not None:
        copied.storage = _deep(interp, copied.storage, memo)
    for name, field in copied.fields.items():
        copied.fields[name] = _deep(interp, field, memo)
    return copied
