"""From real objects to values: one row a kind of object, with the guard that the value needs."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import pathlib
import random
import re
import types
import typing
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from firebrick.capture.breaks.catalogue import Break, SkipFrame
from firebrick.capture.breaks.regions import ON_STACK
from firebrick.capture.guards import sources as s
from firebrick.capture.guards.guard_kinds import TensorMeta
from firebrick.capture.library import known_callables
from firebrick.capture.values.address import WeakReferenceValue, number_key
from firebrick.capture.values.array import ArrayValue, torch_dtype
from firebrick.capture.values.base import Source, Value
from firebrick.capture.values.classes import ClassValue
from firebrick.capture.values.computed import of_float
from firebrick.capture.values.constant import LITERAL_TYPES, ConstantValue, NumpyScalarValue, is_literal
from firebrick.capture.values.exception import ExceptionValue
from firebrick.capture.values.function import BoundMethodValue, CallableValue, CellValue, FunctionValue, PartialValue
from firebrick.capture.values.iterator import IteratorValue
from firebrick.capture.values.mapping import DICT_CLASSES, DictValue, SetValue, key_of
from firebrick.capture.values.module import ModuleValue, PythonModuleValue
from firebrick.capture.values.object import BUILTIN_METHODS, MEMBERS, ObjectValue, builtin_base
from firebrick.capture.values.random_state import GeneratorState, RandomNumbers
from firebrick.capture.values.sequence import DequeValue, ListValue, SliceValue, TupleValue
from firebrick.capture.values.size import size_value
from firebrick.capture.values.subclass import SubclassValue, is_plain_subclass
from firebrick.capture.values.tensor import TensorValue
from firebrick.capture.values.wrapper import read_wrapper
from firebrick.capture.wrappers import is_wrapper
from firebrick.runtime.quantized import quantization, unpacked

if TYPE_CHECKING:
    from firebrick.capture.interpreter.frame_tracer import Tracer

    Wrapper = Callable[[Tracer, Any, Source, bool], Value]

_COUNTING = (int, float, complex, str, bytes)
"""Classes of literals with so many values that a loop does not come back to the same."""


def wrap(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    """The value of a real object that was read from `source`; `pinned` says that it can't be another one."""
    kind = type(obj)
    if kind in LITERAL_TYPES:
        if not pinned:
            if source in tracer.changing and kind in _COUNTING:
                raise Break("changing-value", f"{source} is another {kind.__name__} in each round")
            if source in tracer.numbers and kind is float:
                tracer.guards.type(source, float)
                return of_float(tracer, source, obj)
            symbol = tracer.symbols.integer(obj, source) if kind is int and source in tracer.integers else None
            if symbol is not None:
                tracer.guards.type(source, int)
                return tracer.graph.sizes.integer(symbol, source)
            tracer.guards.equals(source, obj)
        return ConstantValue(obj, source)
    if source in tracer.changed and not isinstance(obj, torch.Tensor):
        raise Break("changing-value", f"{source} is another {kind.__name__} in each round")
    wrapped = tracer.objects.get(id(obj))
    if wrapped is not None:
        tracer.guards.alias(source, wrapped, obj, pinned=pinned)
        return wrapped
    wrapper = _EXACT.get(kind) or _by_class(kind) or _object
    value = wrapper(tracer, obj, source, pinned)
    tracer.remember(obj, value)
    return value


def _by_class(kind: type) -> Any:
    if kind.__module__ in known_callables.FOLDABLE_MODULES:
        return _unchanging
    for cls, wrapper in _CLASSES:
        if issubclass(kind, cls):
            return wrapper
    return None


def _identity(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> None:
    if not pinned and not isinstance(source, s.Const):
        tracer.guards.identity(source, obj)


def _by_identity(make: Any) -> Wrapper:
    """For what is known by identity: its class of values."""

    def wrapped(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
        _identity(tracer, obj, source, pinned)
        return make(obj, source)

    return wrapped


_unchanging = _by_identity(ConstantValue)
"""An instance of a class whose instances never change: evaluated like a literal, guarded by identity."""


def _by_type(make: Any) -> Wrapper:
    """For what may be another object of its class."""

    def wrapped(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
        tracer.guards.type(source, type(obj))
        return make(obj, source)

    return wrapped


def _tuple(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    if not pinned:
        tracer.guards.type(source, type(obj))
        tracer.guards.length(source, len(obj))
    items = [tracer.read(item, s.Item(source, index), pinned=pinned) for index, item in enumerate(obj)]
    return TupleValue(items, source, type(obj))


def _tuple_subclass(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    kind = type(obj)
    if hasattr(kind, "_fields") or kind is torch.Size or kind.__module__ == "torch.return_types":
        return _tuple(tracer, obj, source, pinned)
    value = _object(tracer, obj, source, pinned)
    assert isinstance(value, ObjectValue)
    value.storage = TupleValue(_items(tracer, obj, tuple, source, pinned), source)
    return value


def _items(tracer: Tracer, obj: Any, kind: Any, source: Source, pinned: bool = False) -> list[Value]:
    """Items of an instance of a class derived from list or tuple, past what the class overrides."""
    tracer.guards.length(source, kind.__len__(obj))
    held = kind.__getitem__(obj, slice(None))
    own = type(obj).__getitem__ is not kind.__getitem__
    sources = [s.BuiltinItem(source, i, kind) if own else s.Item(source, i) for i in range(len(held))]
    return [tracer.read(item, at, pinned=pinned) for item, at in zip(held, sources, strict=True)]


def _list(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    tracer.guards.type(source, list)

    def read() -> list[Value]:
        tracer.guards.length(source, len(obj))
        return [tracer.read(item, s.Item(source, index)) for index, item in enumerate(obj)]

    return ListValue(read, source, obj)


def _deque(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    tracer.guards.type(source, deque)
    tracer.guards.length(source, len(obj))
    items: list[Value] = [tracer.read(item, s.Item(source, index)) for index, item in enumerate(obj)]
    return DequeValue(items, source, obj, obj.maxlen)


def dict_entries(tracer: Tracer, obj: dict[Any, Any], source: Source) -> dict[Hashable, tuple[Value, Value]]:
    """Entries of a real dictionary, to be read lazily."""
    entries: dict[Hashable, tuple[Value, Value]] = {}
    for index, (key, item) in enumerate(dict.items(obj)):
        if is_literal(key):
            number_key(tracer, key)
            entry: tuple[Value, Value] = (ConstantValue(key), tracer.read(item, s.BuiltinItem(source, key)))
            if type(key) is tuple:
                entry = (tracer.known(key), entry[1])
            entries[key] = entry
        else:
            key_value = tracer.read(key, s.DictKey(source, index))
            entries[key_of(key_value, tracer.current)] = (key_value, tracer.read(item, s.Item(source, key)))
    return entries


def _dict(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    tracer.guards.type(source, type(obj))
    factory = None
    if isinstance(obj, defaultdict):
        factory = tracer.read(obj.default_factory, s.Attr(source, "default_factory"))
    return DictValue(dict_entries(tracer, obj, source), source, type(obj), obj, factory)


def _set(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    kind = type(obj)
    tracer.guards.type(source, kind)
    tracer.guards.length(source, len(obj))
    entries: dict[Hashable, Value] = {}
    for member in obj:
        value = tracer.known(member)
        entries[key_of(value, tracer.current)] = value
        tracer.guards.has_key(source, member)
    return SetValue(entries, source, kind, obj)


def _slice(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    tracer.guards.type(source, slice)
    parts = [tracer.read(getattr(obj, name), s.Attr(source, name)) for name in ("start", "stop", "step")]
    return SliceValue(parts[0], parts[1], parts[2], source)


def _range(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    if not pinned:
        tracer.guards.type(source, range)
        for name in ("start", "stop", "step"):
            tracer.guards.equals(s.Attr(source, name), getattr(obj, name))
    return ConstantValue(obj, source)


def _function(tracer: Tracer, obj: types.FunctionType, source: Source, pinned: bool) -> Value:
    if pinned or isinstance(source, s.Const):
        return FunctionValue.of(tracer, obj, source)
    if (obj.__closure__ or "<locals>" in obj.__qualname__) and not known_callables.is_special(obj):
        tracer.guards.code(source, obj)
        value = FunctionValue.of(tracer, obj, source, pinned=False)
        value.pin = lambda: tracer.guards.identity(source, obj)  # where it matters which function of the code it is
        return value
    tracer.guards.identity(source, obj)
    return FunctionValue.of(tracer, obj, source)


def _method(tracer: Tracer, obj: types.MethodType, source: Source, pinned: bool) -> Value:
    tracer.guards.type(source, types.MethodType)
    function = tracer.read(obj.__func__, s.MethodPart(source, "__func__"), pinned=pinned)
    owner = tracer.read(obj.__self__, s.MethodPart(source, "__self__"), pinned=pinned)
    return BoundMethodValue(function, owner, source)


def _callable(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    owner = getattr(obj, "__self__", None) if type(obj) is types.BuiltinFunctionType else None
    if str(source).startswith(ON_STACK) and owner is not None and not isinstance(owner, (type, types.ModuleType)):
        # another object at each call: a guard on it would fail each time
        raise Break("unsupported-call", f"{obj.__name__}() of a {type(owner).__name__} was looked up before a break")
    _identity(tracer, obj, source, pinned)
    return CallableValue(obj, source)


def _module(tracer: Tracer, obj: torch.nn.Module, source: Source, pinned: bool) -> Value:
    if not s.is_picked(source):
        _identity(tracer, obj, source, pinned)
    tracer.guards.type(source, type(obj))
    if "_modules" not in vars(obj):
        raise SkipFrame(f"{type(obj).__name__}.__init__ of torch.nn.Module has not run yet")
    return ModuleValue(obj, source, tracer.module_path(source))


_ENDED = -2
"""Level of a tensor that outlives its transform: eager unwraps it at each operation, it has no storage of its own."""


def _tensor(tracer: Tracer, obj: torch.Tensor, source: Source, pinned: bool) -> Value:
    if is_lazy(obj):
        raise SkipFrame(f"{source} is made by the first call")
    if type(obj) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return _subclass(tracer, obj, source)
    path, picked = tracer.parameter_path(source), s.is_picked(source)
    if path is not None and source not in tracer.replaced and not picked and not obj.is_quantized:
        _identity(tracer, obj, source, pinned)
        tracer.guards.requires_grad(source, obj)
        return tracer.graph.attribute(obj, path, source)
    if obj.is_quantized:
        return _quantized(tracer, obj, source)
    if obj.is_nested:
        raise Break("unsupported-operation", f"{source} is a nested tensor")
    if torch._C._functorch.maybe_get_level(obj) == _ENDED:
        raise Break("unsupported-operation", f"{source} was made within a transform of torch.func that has ended")
    varying = {} if picked else tracer.symbols.of(obj, source)
    tracer.guards.tensor(source, obj, varying)
    if not varying:
        return tracer.graph.input(obj, source)
    shape, strides = tracer.symbols.layout(obj, varying)
    meta = TensorMeta.of(obj, varying)
    tracer.symbols.guard_strides(source, strides, meta.strides)
    tracer.graph.mode.from_layout(obj, shape, strides)  # type: ignore[attr-defined]
    value = tracer.graph.input(obj, source)
    for dim, symbol in varying.items():
        tracer.graph.sizes.leaves.setdefault(symbol.name, (value, value.node, dim))
    return value


def _quantized(tracer: Tracer, obj: torch.Tensor, source: Source) -> Value:
    """Its codes, taken from it before the graph."""
    scheme, dtype, _, _, *numbers = how = quantization(obj)
    if not numbers or dtype not in (torch.quint8, torch.qint8) or obj.device.type != "cpu":
        raise Break("unsupported-operation", f"{source} is quantized by {scheme} in {dtype}")
    tracer.guards.equals(s.Applied(source, quantization, "how {0.base} is quantized"), how)
    codes = tracer.graph.made("codes", tracer.prelude.add(torch.int_repr, [source]), obj.int_repr())
    value = SubclassValue(tracer, known_callables.polyfill("quantized"), codes, None, source)
    fields = dict(zip(("scale", "zero_point", "given"), map(ConstantValue, (*numbers, True)), strict=True))
    value.fields.update(codes=codes, **fields)
    return value


def _script_object(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    """Packed weights are a module of their tensors."""
    packed = unpacked(obj)
    if packed is None:
        return _object(tracer, obj, source, pinned)
    _identity(tracer, obj, source, pinned)
    return tracer.read(packed, s.Const(packed, "packed"), pinned=True).realize()


def _subclass(tracer: Tracer, obj: torch.Tensor, source: Source) -> Value:
    if is_wrapper(obj) and not is_plain_subclass(type(obj)):
        return read_wrapper(tracer, obj, source)
    if not is_plain_subclass(type(obj)):
        raise Break("tensor-subclass", f"{source} is a {type(obj).__name__}")
    tracer.guards.type(source, type(obj))
    plain = tracer.read(s.plain_tensor(obj), s.Applied(source, s.plain_tensor)).realize()
    assert isinstance(plain, TensorValue)
    return SubclassValue(tracer, type(obj), plain, obj, source)


def _array(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    """An array: a tensor on its memory goes into the graph."""
    if s.tensor_of(obj) is None:
        raise Break("numpy", f"{source} is an array that is not writable or that torch has no dtype or strides for")
    torch_dtype(obj.dtype)
    tracer.guards.type(source, type(obj))
    tensor = tracer.read(s.tensor_of(obj), s.Applied(source, s.tensor_of)).realize()
    assert isinstance(tensor, TensorValue)
    return ArrayValue(tensor, source, obj)


def _partial(tracer: Tracer, obj: functools.partial[Any], source: Source, pinned: bool) -> Value:
    tracer.guards.type(source, type(obj))
    args, keywords = s.Attr(source, "args"), s.Attr(source, "keywords")
    tracer.guards.length(args, len(obj.args))
    tracer.guards.keys(keywords, tuple(obj.keywords))
    return PartialValue(
        tracer.read(obj.func, s.Attr(source, "func")),
        [tracer.read(item, s.Item(args, index)) for index, item in enumerate(obj.args)],
        {name: tracer.read(item, s.BuiltinItem(keywords, name)) for name, item in obj.keywords.items()},
        source,
        obj,
    )


def _fixed(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    _identity(tracer, obj, source, pinned)
    value = ObjectValue(type(obj), obj, source, fixed=True)
    if isinstance(obj, (int, str, float)):
        value.storage = ConstantValue(_plain(obj, builtin_base(type(obj))))
    return value


def _plain(obj: Any, base: Any) -> Any:
    """The number or text in an instance of a derived class, whose own conversions may say something else."""
    if base is bytes:
        return bytes.__getitem__(obj, slice(None))
    method = {int: "__index__", float: "__float__", str: "__str__", complex: "__complex__"}[base]
    return getattr(base, method)(obj)


def _proxy(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    """A view of a dict that nothing else leads to; one that captured code has asked for is taken as it is."""
    if not pinned and not isinstance(source, s.Const):
        raise Break("unsupported-operation", f"{source} is a view of a dict, a mappingproxy")
    return ConstantValue(obj, source)


def _exception(tracer: Tracer, obj: BaseException, source: Source, pinned: bool) -> Value:
    _identity(tracer, obj, source, pinned)
    args = tracer.read(obj.args, s.Attr(source, "args")).realize()
    assert isinstance(args, TupleValue)
    return ExceptionValue(type(obj), args.items, obj)


def _object(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    if known_callables.find(obj) is not None or known_callables.is_graph_function(obj):
        return _callable(tracer, obj, source, pinned)
    if isinstance(source, s.Const):
        return ObjectValue(type(obj), obj, source, fixed=True)
    tracer.guards.type(source, type(obj))
    return ObjectValue(type(obj), obj, source)


def _container(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    """An instance of a class derived from a built-in container or number."""
    value = _object(tracer, obj, source, pinned)
    if not isinstance(value, ObjectValue):
        return value
    base = builtin_base(type(obj))
    if base in DICT_CLASSES:
        value.storage = DictValue(dict_entries(tracer, obj, source), source, base, obj)
        if isinstance(obj, defaultdict):
            value.storage.factory = tracer.read(obj.default_factory, s.Attr(source, "default_factory"))
    elif base is list:
        value.storage = ListValue(_items(tracer, obj, list, source), source, obj)
    elif base in (set, frozenset):
        storage = _set(tracer, base(obj), source, True)
        assert isinstance(storage, SetValue)
        storage.cls, storage.obj = base, obj
        value.storage = storage
    elif base in (int, float, str, bytes, complex):
        tracer.guards.identity(source, obj)
        value.storage = ConstantValue(_plain(obj, base))
    return value


UNCHANGING: tuple[type, ...] = (
    *(inspect.Signature, inspect.Parameter, type(inspect.Parameter.POSITIONAL_ONLY), dataclasses.Field),
    *(types.CodeType, types.UnionType, types.GenericAlias, re.Pattern, re.Match, torch.finfo, torch.iinfo),
    *(fractions.Fraction, decimal.Decimal, datetime.timedelta, datetime.date, typing.TypeVar),
    *(pathlib.PosixPath, pathlib.PurePosixPath, torch.torch_version.TorchVersion),
    *map(type, (typing.Callable, typing.Mapping, typing.Tuple, typing.Union, typing.Literal)),  # noqa: UP006
    type(typing.Optional[int]),  # noqa: UP045
)
"""Classes whose instances never change."""


def _reference(tracer: Tracer, obj: Any, source: Source, pinned: bool) -> Value:
    tracer.guards.type(source, weakref.ref)
    return WeakReferenceValue(tracer.read(obj(), s.referent(source)), source)


_EXACT: dict[type, Wrapper] = {
    weakref.ref: _reference,
    tuple: _tuple,
    list: _list,
    **dict.fromkeys(DICT_CLASSES, _dict),
    deque: _deque,
    **dict.fromkeys((set, frozenset), _set),
    slice: _slice,
    range: _range,
    types.FunctionType: _function,
    types.MethodType: _method,
    **dict.fromkeys((*BUILTIN_METHODS, *MEMBERS, types.BuiltinFunctionType, types.MethodWrapperType), _callable),
    types.CellType: lambda tracer, obj, source, pinned: tracer.cell(obj, "", source),
    np.ndarray: _array,
    torch.Generator: _by_type(GeneratorState),
    random.Random: _by_type(RandomNumbers),
    types.MappingProxyType: _proxy,
    functools.partial: _partial,
    type(functools.lru_cache(lambda: None)): _callable,
    **dict.fromkeys(UNCHANGING, _unchanging),
}
_CLASSES: tuple[tuple[Any, Any], ...] = (
    (torch.nn.Module, _module), (torch.ScriptObject, _script_object), (torch.Tensor, _tensor),
    (type, _by_identity(ClassValue)), (types.ModuleType, _by_identity(PythonModuleValue)), (enum.Enum, _fixed),
    (np.generic, _by_identity(NumpyScalarValue)), (tuple, _tuple_subclass),
    ((torch._ops.OpOverload, torch._ops.OpOverloadPacket), _callable), (BaseException, _exception),
    ((dict, list, set, frozenset, int, float, str, bytes, complex), _container),
)  # fmt: skip


_FRESH: Mapping[type, Any] = {
    tuple: lambda tracer, obj: TupleValue([fresh(tracer, item) for item in obj]),
    list: lambda tracer, obj: ListValue([fresh(tracer, item) for item in obj]),
    deque: lambda tracer, obj: DequeValue([fresh(tracer, item) for item in obj], maxlen=obj.maxlen),
    **dict.fromkeys((dict, OrderedDict, Counter), lambda tracer, obj: _fresh_dict(tracer, obj)),
    **dict.fromkeys(
        (set, frozenset),
        lambda tracer, obj: SetValue({key_of(v := fresh(tracer, m), tracer.current): v for m in obj}, cls=type(obj)),
    ),
    slice: lambda tracer, obj: SliceValue(fresh(tracer, obj.start), fresh(tracer, obj.stop), fresh(tracer, obj.step)),
    range: lambda tracer, obj: ConstantValue(obj),
    types.CellType: lambda tracer, obj: CellValue(fresh(tracer, obj.cell_contents), "", obj=obj),
}


def _fresh_dict(tracer: Tracer, obj: dict[Any, Any]) -> Value:
    entries: dict[Hashable, tuple[Value, Value]] = {}
    for key, item in obj.items():
        value = fresh(tracer, key)
        entries[key_of(value, tracer.current)] = (value, fresh(tracer, item))
    return DictValue(entries, cls=type(obj))


def fresh(tracer: Tracer, obj: Any) -> Value:
    """The value of an object that an evaluation has just made: containers are new ones."""
    kind = type(obj)
    if kind in LITERAL_TYPES:
        return ConstantValue(obj)
    if kind is torch.SymInt:
        return size_value(obj, tracer.graph.sizes)
    make = _FRESH.get(kind)
    if make is not None:
        return make(tracer, obj)
    if isinstance(obj, tuple) and (hasattr(kind, "_fields") or kind is torch.Size):
        return TupleValue([fresh(tracer, item) for item in obj], cls=kind)
    if isinstance(obj, Iterator):  # taken now, since one object would be used up by the first call
        return IteratorValue(iter([fresh(tracer, item) for item in obj]), kind)
    return tracer.known(obj)
