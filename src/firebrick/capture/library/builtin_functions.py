"""Rules for Python's built-in functions and classes."""

from __future__ import annotations

import abc
import collections
import functools
import math
import operator
import os
import random
import sys
import types
import warnings
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break, SkipFrame, breaks
from firebrick.capture.interpreter import operators
from firebrick.capture.library.known_callables import (
    CODE_HANDLERS,
    FOLDABLE,
    FOLDABLE_MODULES,
    OPAQUE_MODULES,
    handles,
    handles_all,
    handles_each,
    key_of,
)
from firebrick.capture.library.torch_settings import settle
from firebrick.capture.values import random_state
from firebrick.capture.values.address import AddressValue
from firebrick.capture.values.array import ArrayValue
from firebrick.capture.values.base import Args, Interpreter, Kwargs, NotConstant, Value
from firebrick.capture.values.classes import ClassValue, SuperValue, fill
from firebrick.capture.values.computed import applied
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.function import BoundMethodValue, CallableValue, CellValue, FunctionValue, PartialValue
from firebrick.capture.values.iterator import IteratorValue, of_list
from firebrick.capture.values.made import NumberValue
from firebrick.capture.values.mapping import DictValue, SetValue, pairs_of
from firebrick.capture.values.object import MISSING, ObjectValue, converted, overriding
from firebrick.capture.values.scalar import OpenText, ScalarValue, chosen, extreme, finite, is_open, rounded, truth_of
from firebrick.capture.values.sequence import DequeValue, ListValue, SliceValue, TupleValue
from firebrick.capture.values.size import SizeValue, of_sizes
from firebrick.capture.values.tensor import TensorValue

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE

FOLDABLE.update(
    {
        key_of(obj): obj
        for obj in (
            abs, all, any, ascii, bin, bool, bytes, callable, chr, complex, divmod, float, format, hash, hex, int,
            max, min, oct, ord, pow, repr, round, str, sum, os.fspath, sys.intern, str.maketrans,
        )
    }
)  # fmt: skip
FOLDABLE_MODULES.update({"math", "cmath", "_operator", "operator", "posixpath", "_struct", "binascii", "_functools"})
OPAQUE_MODULES.update(
    {
        "logging", "warnings", "threading", "importlib", "pickle", "subprocess", "multiprocessing", "asyncio", "socket",
        "tempfile", "shutil", "unittest", "pdb", "traceback", "json", "pathlib", "zipfile", "inspect",
        "torch._dynamo", "torch._inductor", "torch._functorch", "torch.export", "torch.jit", "torch.distributed",
        "torch.multiprocessing", "torch.serialization", "torch.hub", "torch.onnx", "torch.fx", "torch._subclasses",
        "numpy", "firebrick.report", "firebrick.capture", "torch.autograd", "torch.cuda",
        "torch.profiler", "torch.testing", "torch.storage", "torch._tensor_str", "torch.package",
    }
)  # fmt: skip


# -- kinds --------------------------------------------------------------------------------


def _classes(interp: Interpreter, value: Value) -> Any:
    if not value.is_constant():
        raise Break("unsupported-call", "isinstance() with classes that are not known")
    return value.as_constant()


@handles(isinstance)
def _isinstance(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].realize()
    classes, kind = _classes(interp, args[1]), value.python_type()
    _guard_abstract(interp, kind, classes)
    with interp.raising(TypeError):
        if isinstance(value, TensorValue):
            return ConstantValue(_tensor_is(value, classes))
        if isinstance(value, ObjectValue) and value.obj is not None:
            return ConstantValue(isinstance(value.obj, classes))
        if value.is_constant():
            return ConstantValue(isinstance(value.as_constant(), classes))
        return ConstantValue(issubclass(kind, classes))


def _guard_abstract(interp: Interpreter, kind: type, classes: Any) -> None:
    """What an abstract class answers about a class that is none of its own changes with registrations."""
    for cls in classes if isinstance(classes, tuple) else (classes,):
        if isinstance(cls, abc.ABCMeta) and cls not in kind.__mro__ and not kind.__flags__ & _IMMUTABLE:
            interp.tracer.guards.state("ABSTRACT_CLASSES")
        if type(cls) not in (type, abc.ABCMeta):
            interp.lookup(type(cls), "__instancecheck__")


def _tensor_is(value: TensorValue, classes: Any) -> bool:
    if isinstance(classes, tuple):
        return any(_tensor_is(value, cls) for cls in classes)
    if isinstance(classes, types.UnionType):
        return any(_tensor_is(value, cls) for cls in classes.__args__)
    legacy = type(classes).__module__ == "torch" and type(classes).__name__ == "tensortype"
    if isinstance(classes, type) and not legacy:
        return issubclass(value.cls, classes)
    return isinstance(value.fake, classes)


@handles(issubclass)
def _issubclass(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    try:
        kind, classes = args[0].realize().as_constant(), _classes(interp, args[1])
        _guard_abstract(interp, kind, classes)
        return ConstantValue(issubclass(kind, classes))
    except (TypeError, NotConstant):
        interp.raise_new(TypeError, "issubclass() arg 1 must be a class")


@handles(type)
def _type(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        return interp.tracer.known(args[0].realize().python_type())
    kind = interp.tracer.known(type)
    assert isinstance(kind, ClassValue)
    return kind.construct(interp, args, kwargs)


@handles(callable)
def _callable(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].realize()
    if isinstance(value, (FunctionValue, BoundMethodValue, CallableValue, ClassValue, PartialValue)):
        return ConstantValue(True)
    return ConstantValue(interp.lookup(value.python_type(), "__call__")[0] is not MISSING)


def _address(function: Any, interp: Interpreter, value: Value) -> Value:
    """`id` or `hash` of an object."""
    value.compare()
    identity = value.identity()
    if identity is value and interp.tracer.graph.outer is None:
        return AddressValue(function, value, interp)
    if isinstance(identity, (Value, tuple)):
        raise Break("unsupported-call", f"{function.__name__}() of {value.describe()}")
    interp.tracer.guards.pin(value)
    return ConstantValue(function(identity))


@handles(hash)
def _hash(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].realize()
    if isinstance(value, ObjectValue) and isinstance(interp.lookup(value.cls, "__hash__")[0], types.FunctionType):
        return converted(interp, value, "__hash__", hash)
    kind = value.python_type()
    if kind.__hash__ is None:
        interp.raise_new(TypeError, f"unhashable type: {kind.__name__!r}")
    own_hash: Any = kind.__hash__
    if own_hash in (object.__hash__, torch.Tensor.__hash__):
        return _address(hash, interp, value)
    return interp.fold(hash, args, {})


@handles(super)
def _super(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        raise Break("unsupported-call", "super() is called with a class alone")
    if args:
        return SuperValue(args[0].realize().as_constant(), args[1].realize())
    cell = interp.slots.get("__class__")
    if not isinstance(cell, CellValue) or cell.content is None:
        interp.raise_new(RuntimeError, "super(): __class__ cell not found")
    first = interp.slots[interp.code.co_varnames[0]]
    if isinstance(first, CellValue):
        assert first.content is not None
        first = first.content
    return SuperValue(cell.content.realize().as_constant(), first.realize())


# -- attributes ------------------------------------------------------------------------------


def _text(value: Value) -> str:
    name = value.realize().as_constant()
    if isinstance(name, str):
        return name
    raise Break("unsupported-call", "the name of an attribute is no text")


@handles(getattr)
def _getattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    read, name = args[0].realize().get_attr, _text(args[1])
    value = interp.attempt(AttributeError, read, interp, name) if len(args) > 2 else read(interp, name)
    return args[2] if value is None else value


@handles(setattr, delattr)
def _change(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value, name = args[0].realize(), _text(args[1])
    if len(args) > 2:
        value.set_attr(interp, name, args[2])
    else:
        value.del_attr(interp, name)
    return NONE


@handles(object.__getattribute__)
def _generic_getattr(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].realize()
    name = _text(args[1])
    return value.generic_get_attr(interp, name) if isinstance(value, ObjectValue) else value.get_attr(interp, name)


@handles(object.__setattr__, object.__delattr__)
def _generic_change(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value, name, *stored = args[0].realize(), _text(args[1]), *args[2:]
    if not isinstance(value, ObjectValue):
        raise Break("unsupported-attribute", f"attribute of {value.describe()} is {'set' if stored else 'deleted'}")
    if stored:
        value.generic_set_attr(interp, name, stored[0])
    else:
        value.generic_del_attr(interp, name)
    return NONE


@handles(*(kind.__new__ for kind in (object, tuple, dict, list, collections.OrderedDict, set)))
def _new(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].realize()
    if not isinstance(cls, ClassValue):
        raise Break("unsupported-call", "__new__() of what is no class")
    return cls.blank(interp, args[1:])


@handles(vars, locals)
def _vars(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if args:
        return args[0].realize().get_attr(interp, "__dict__")
    if interp.names is not NONE:
        return interp.names
    slots: dict[str, Value] = {}
    code = interp.code
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        value = interp.slots.get(name)
        content = value.content if isinstance(value, CellValue) else value
        if content is not None and name.isidentifier():
            slots[name] = content
    return DictValue.of(slots)


handles(globals, compile, input, open)(breaks("unsupported-call", "a built-in function that looks outside is called"))


@handles(dir, eval, exec, breakpoint)
def _looks_at_frame(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if interp.parent is None and len(args) < 2 and not kwargs:
        raise SkipFrame("a function that looks at the frame's locals is called", always=True)
    raise Break("unsupported-call", "a built-in function that looks at the frame is called")


# -- iteration -----------------------------------------------------------------------------------


@handles(iter)
def _iter(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        return interp.iterator(args[0])
    return interp.inline(interp.stand_in("until"), args, {})


@handles(next)
def _next(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    item = interp.next_or_none(args[0]) if len(args) > 1 else interp.next_of(args[0])
    return args[1] if item is None else item


@handles(reversed)
def _reversed(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].realize()
    if isinstance(value, ObjectValue) and isinstance(interp.lookup(value.cls, "__reversed__")[0], types.FunctionType):
        return value.call_method(interp, "__reversed__", [], {})
    if isinstance(value, TensorValue):
        return value.call_method(interp, "flip", [ConstantValue(0)], {}) if value.fake.dim() else value
    kind = value.python_type()
    if not hasattr(kind, "__reversed__") and not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        interp.raise_new(TypeError, f"{kind.__name__!r} object is not reversible")
    if type(value) is ListValue:
        return of_list(value, backwards=True)
    return IteratorValue(iter(list(value.iterate(interp))[::-1]), reversed)


@handles(sum)
def _sum(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    total = args[1] if len(args) > 1 else kwargs.get("start", ConstantValue(0))
    for kind, name in ((str, "strings [use ''.join(seq) instead]"), (bytes, "bytes [use b''.join(seq) instead]")):
        if issubclass(total.realize().python_type(), kind):
            interp.raise_new(TypeError, f"sum() can't sum {name}")
    for item in interp.iterate(args[0]):
        total = operators.binary(interp, "+", total, item)
    return total


@handles_each(max, min)
def _extreme(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    items = list(interp.iterate(args[0])) if len(args) == 1 else list(args)
    if not items:
        return kwargs["default"] if "default" in kwargs else interp.fold(function, [ConstantValue(())], {})
    key = kwargs.get("key", NONE)
    plain = key.realize().python_type() is type(None)
    best, best_key = items[0], items[0] if plain else interp.call(key, items[0])
    for item in items[1:]:
        both, either = (best.realize(), item.realize()), None
        if plain and any(isinstance(one, SizeValue) for one in both):
            either = of_sizes(function.__name__, *both)
        if plain and either is None:
            either = extreme(interp, function, *both)
        if either is None:
            item_key = item if plain else interp.call(key, item)
            second = operators.compare(interp, ">" if function is max else "<", item_key, best_key).realize()
            either = chosen(interp, second, *both) if plain else None
            if either is None and second.truth(interp):
                best, best_key = item, item_key
        if either is not None:
            best = best_key = either
    return best


# -- containers ------------------------------------------------------------------------------------


@handles(tuple)
def _tuple(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0].realize(), TupleValue) and args[0].python_type() is tuple:
        return args[0]
    return TupleValue(list(interp.iterate(args[0])) if args else [])


@handles_each(dict, collections.OrderedDict, collections.defaultdict)
def _mapping(cls: type, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    mapping = DictValue({}, cls=cls, factory=NONE if cls is collections.defaultdict else None)
    fill(interp, mapping, args, kwargs)
    return mapping


@handles(collections.namedtuple)
def _namedtuple(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    module = {"module": ConstantValue(interp.globals.get("__name__"))} | dict(kwargs)
    return interp.fold(collections.namedtuple, args, module, copied=True)


@handles(collections.deque)
def _deque(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    limit = args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)
    return DequeValue(list(interp.iterate(args[0])) if args else [], maxlen=limit.realize().as_constant())


@handles_each(dict.fromkeys, collections.OrderedDict.fromkeys)
def _from_keys(method: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    mapping = DictValue({}, cls=method.__self__)
    for key in interp.iterate(args[0]):
        mapping.set_item(interp, key, args[1] if len(args) > 1 else NONE)
    return mapping


@handles(slice)
def _slice(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        return SliceValue(NONE, args[0])
    return SliceValue(args[0], args[1], args[2] if len(args) > 2 else NONE)


# -- numbers and text ----------------------------------------------------------------------------------


@handles_each(int, float, complex)
def _number(cls: type, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    method = f"__{cls.__name__}__"
    if args:
        value = args[0].realize()
        if len(args) == 1 and isinstance(value, SizeValue) and cls is int:
            return value
        if len(args) == 1 and isinstance(value, TensorValue):
            return value.call_method(interp, method, [], {})
        if isinstance(value, (TensorValue, ArrayValue)):
            raise Break("data-dependent-value", f"{cls.__name__}() of a tensor or array")
        if isinstance(value, NumberValue) and cls is not complex and len(args) == 1:
            return value.converted(interp, cls)
        if not kwargs and cls is not complex and (result := applied(interp, cls, args)) is not None:
            return result
        if isinstance(value, ObjectValue):
            conversion, _ = interp.lookup(value.cls, method)
            if isinstance(conversion, types.FunctionType):
                return converted(interp, value, method, cls)
            if value.storage is not None:
                args = [value.storage, *args[1:]]
    return interp.fold(cls, args, kwargs, copied=True)


@handles(types.SimpleNamespace)
def _simple_namespace(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    namespace = ObjectValue(types.SimpleNamespace)
    namespace.fields.update(kwargs)
    for other in args:
        for key, item in pairs_of(interp, other):
            namespace.fields.setdefault(_text(key), item)
    return namespace


@handles_each(abs, round)
def _unary(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value, method = args[0].realize(), f"__{function.__name__}__"
    if isinstance(value, TensorValue):
        return interp.operate(function, *args, *kwargs.values())
    if isinstance(value, ArrayValue) or (isinstance(value, ObjectValue) and overriding(interp, value, method)):
        return value.call_method(interp, method, args[1:], kwargs)
    if isinstance(value, NumberValue) and len(args) == 1 and not kwargs:
        return value.converted(interp, function)
    if isinstance(value, ScalarValue) and function is round and (late := rounded(value, (*args, *kwargs.values())[1])):
        return late
    return (None if kwargs else applied(interp, function, args)) or interp.fold(function, args, kwargs)


@handles_each(math.isnan, math.isinf, math.isfinite)
def _of_float(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    value = args[0].realize()
    if isinstance(value, ScalarValue) and value.cls is float:
        return finite(interp, function, value)
    return interp.fold(function, args, kwargs, copied=True)


@handles(pow)
def _pow(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2:
        return operators.binary(interp, "**", args[0], args[1])
    base = args[0].realize()
    if isinstance(base, ObjectValue) and base.storage is None:
        return base.call_method(interp, "__pow__", args[1:], kwargs)
    return interp.fold(pow, args, kwargs)


_DIVMOD = operators.BinaryRow("divmod", divmod, divmod, "divmod")


@handles(divmod)
def _divmod(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    left, right = args[0].realize(), args[1].realize()
    if isinstance(left, ObjectValue) or isinstance(right, ObjectValue):
        result = operators.by_objects(interp, _DIVMOD, left, right, "divmod")
        if result is not None:
            return result
    if isinstance(left, TensorValue) or isinstance(right, TensorValue):
        names = f"{left.python_type().__name__!r} and {right.python_type().__name__!r}"
        interp.raise_new(TypeError, f"unsupported operand type(s) for divmod(): {names}")
    if is_open(left) or is_open(right):
        return TupleValue([operators.binary(interp, symbol, left, right) for symbol in ("//", "%")])
    return interp.fold(divmod, args, kwargs)


@handles_each(print, warnings.warn)
def _says(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    if function is warnings.warn and settle(interp, *args, **kwargs):
        return NONE
    late = is_open if function is print else lambda value: isinstance(value, OpenText)
    if not all(arg.realize().is_constant() or late(arg.realize()) for arg in (*args, *kwargs.values())):
        text = f"{function.__name__}() of a tensor or object"
        raise Break("unsupported-call", text, fix=f"call {function.__name__} after the compiled function")
    if function is print and interp.tracer.effects.global_value(vars(sys), "stdout") is not None:
        raise Break("unsupported-call", "print() to what sys.stdout was set to")
    interp.tracer.effects.later(function, args, {name: arg for name, arg in kwargs.items() if name != "stacklevel"})
    return NONE


# -- functools -----------------------------------------------------------------------


@handles(functools.partial)
def _partial(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    function = args[0].realize()
    if isinstance(function, PartialValue):
        return PartialValue(function.function, [*function.args, *args[1:]], {**function.kwargs, **kwargs})
    return PartialValue(function, args[1:], kwargs)


handles_all(
    {
        id: lambda interp, args, kwargs: _address(id, interp, args[0].realize()),
        hasattr: lambda interp, args, kwargs: ConstantValue(interp.has_attr(args[0], _text(args[1]))),
        operator.index: lambda interp, args, kwargs: ConstantValue(interp.index_of(args[0])),
        object.__init__: lambda interp, args, kwargs: NONE,
        len: lambda interp, args, kwargs: (
            value.length_value(interp)
            if isinstance(value := args[0].realize(), TensorValue)
            else ConstantValue(value.length(interp))
        ),
        sorted: lambda interp, args, kwargs: ListValue(
            interp.sorted_items(list(interp.iterate(args[0])), kwargs.get("key"), kwargs.get("reverse"))
        ),
        any: lambda at, args, kwargs: ConstantValue(any(item.realize().truth(at) for item in at.iterate(args[0]))),
        all: lambda at, args, kwargs: ConstantValue(all(item.realize().truth(at) for item in at.iterate(args[0]))),
        list: lambda interp, args, kwargs: ListValue(list(interp.iterate(args[0])) if args else []),
        set: lambda interp, args, kwargs: SetValue.of(interp, interp.iterate(args[0]) if args else iter(())),
        frozenset: lambda at, args, kwargs: SetValue.of(at, at.iterate(args[0]) if args else iter(()), frozenset),
        range: lambda at, args, kwargs: at.fold(range, [ConstantValue(at.index_of(arg)) for arg in args], {}),
        bytes: lambda interp, args, kwargs: interp.fold(bytes, args, kwargs, copied=True),
        bool: lambda interp, args, kwargs: truth_of(interp, args[0]) if args else ConstantValue(False),
        repr: lambda interp, args, kwargs: interp.formatted(args[0], "r", ""),
        str: lambda interp, args, kwargs: (
            interp.formatted(args[0], "s", "") if len(args) == 1 and not kwargs else interp.fold(str, args, kwargs)
        ),
        format: lambda interp, args, kwargs: interp.formatted(
            args[0], "", args[1].realize().as_constant() if len(args) > 1 else ""
        ),
        types.MethodType: lambda interp, args, kwargs: BoundMethodValue(args[0], args[1]),
    }
)


# -- random numbers ----------------------------------------------------------------------


handles(torch.Generator)(random_state.make_generator)
handles(random.Random)(random_state.make_numbers)
handles(torch.manual_seed)(functools.partial(random_state.seed_default, torch.manual_seed))


def _method_rule(name: str, interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    owner = args[0].realize() if args else None
    if not isinstance(owner, random_state.RandomNumbers):
        raise Break("random-generator", f"random.Random.{name}() is called")
    return owner.call_method(interp, name, args[1:], kwargs)


for _name in sorted(random_state.NUMBER_METHODS):
    _function = vars(random.Random).get(_name)
    if isinstance(_function, types.FunctionType):
        CODE_HANDLERS[_function.__code__] = functools.partial(_method_rule, _name)
