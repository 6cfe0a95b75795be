"""Rules of `class` statements, of `type` with three arguments, and of what decorates classes and what is in them."""

from __future__ import annotations

import abc
import builtins
import dataclasses
import enum
import functools
import types
import typing
from functools import partial
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.bytecode.cpython import NOTES_SET_NAME
from firebrick.capture.library.known_callables import handles, handles_all, handles_each
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Raised, Value
from firebrick.capture.values.classes import LIBRARIES, ClassValue, SuperValue
from firebrick.capture.values.constant import NONE, ConstantValue
from firebrick.capture.values.exception import ExceptionValue
from firebrick.capture.values.function import CellValue, FunctionValue, PartialValue
from firebrick.capture.values.mapping import DictValue, SetValue
from firebrick.capture.values.new_class import NewClassValue, build, make_class, run, stand_in
from firebrick.capture.values.object import MISSING, ObjectValue
from firebrick.capture.values.sequence import ListValue, SequenceValue, TupleValue

_METAS: set[Any] = {
    kind
    for module in (builtins, abc, enum, typing, torch.autograd.function)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, type)
}
"""Metaclasses that are given stand-ins."""

handles_each(
    *(property, staticmethod, classmethod, functools.cached_property, dataclasses.field, enum.auto),
    *(getattr(enum, name) for name in ("member", "nonmember") if hasattr(enum, name)),
)(build)


@handles(builtins.__build_class__)
def _class_statement(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    body, name, *bases = args
    function = body.realize()
    assert isinstance(function, FunctionValue)
    hosts = tuple(interp.hosts(bases, {}, "unsupported-instruction", "a class is made", copied=False)[0])
    resolved, options = types.resolve_bases(hosts), dict(kwargs)
    meta = options.pop("metaclass", None) or interp.tracer.known(type(resolved[0]) if resolved else type)
    named = [name, TupleValue([interp.tracer.known(base) for base in resolved])]
    namespace: Value = DictValue({})
    if isinstance(meta := meta.realize(), ClassValue):
        with interp.raising(TypeError):
            meta = interp.tracer.known(types._calculate_meta(meta.obj, resolved))  # type: ignore[attr-defined]
        if interp.lookup(meta.as_constant(), "__prepare__")[1].__module__ not in LIBRARIES:  # type: ignore[union-attr]
            namespace = meta.get_attr(interp, "__prepare__").realize().call(interp, named, options).realize()
    cell = interp.run_body(function, namespace)
    if resolved is not hosts:
        namespace.set_item(interp, ConstantValue("__orig_bases__"), TupleValue(bases))
    new_class = meta.call(interp, [*named, namespace], options).realize()
    if isinstance(cell, CellValue) and isinstance(new_class, ClassValue) and cell.content is None:
        text = f"__class__ not set defining {name.as_constant()!r} as {new_class.obj!r}."
        interp.raise_new(RuntimeError, f"{text} Was __classcell__ propagated to type.__new__?")
    return new_class


@handles_each(*{meta.__new__ for meta in _METAS})
def _new_class(maker: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """`maker(meta, name, bases, namespace, **options)`; what the program's own hooks do with the class is captured."""
    meta, name, bases, space = (arg.realize() for arg in args)
    storage = space.storage if isinstance(space, ObjectValue) else space
    hosts = tuple(base.as_constant() for base in interp.iterate(bases))
    if not isinstance(storage, DictValue):
        raise Break("unsupported-instruction", f"a class is made of {space.describe()}")
    with interp.raising(TypeError):
        winner: Any = types._calculate_meta(meta.as_constant(), hosts)  # type: ignore[attr-defined]
    if winner is not meta.as_constant():
        return interp.tracer.known(winner).new(interp, args[1:], kwargs)  # type: ignore[attr-defined, no-any-return]
    entries = {key.realize().as_constant(): entry for key, entry in storage.whole(interp).values()}
    cell = entries.pop("__classcell__", None)
    if isinstance(maker, types.BuiltinFunctionType):
        entries.setdefault("__module__", ConstantValue(interp.globals.get("__name__")))
    own = {interp.lookup(winner, method)[1].__module__ for method in ("__new__", "__init__", "__prepare__")}  # type: ignore[union-attr]
    every = [c for base in hosts if interp.lookup(base, "__init_subclass__")[1] for c in base.__mro__]  # guards it
    told = {c.__module__ for c in every if "__init_subclass__" in vars(c)} - {*LIBRARIES}
    odd = interp.lookup(winner, "mro")[1] is not type or not {*map(type, entries)} <= {str}
    odd = odd or "__classdictcell__" in entries  # which has type parameters
    odd = odd or (issubclass(winner, enum.EnumMeta) and not own <= {*LIBRARIES})
    if odd or (told and maker not in (type.__new__, abc.ABCMeta.__new__)):
        raise Break("unsupported-instruction", f"{winner.__name__} itself follows class {name.as_constant()}")
    host_entries = {key: _host_of(interp, key, entry.realize()) for key, entry in entries.items()}
    options = {} if told else {key: stand_in(interp, option) for key, option in kwargs.items()}
    make = partial(make_class, maker, winner, name.as_constant(), hosts, host_entries, options, bool(told))
    recipe = [interp.tracer.known(maker), meta, name, bases]
    value = NewClassValue(host := run(interp, make, [], {}), recipe, entries, {} if told else kwargs, bool(told))
    interp.tracer.remember(host, value)
    interp.tracer.graph.new_objects[id(host)] = value
    value.register(interp)
    if isinstance(cell, CellValue):
        cell.content = value
    for key, entry in [*entries.items()]:
        owner = entry.realize()
        if isinstance(owner, ObjectValue) and interp.lookup(owner.cls, "__set_name__")[0] is not MISSING:
            value.entries[key] = NONE  # where the class leaves, it is put there behind the making, and not named again
            value.steps.append((type.__setattr__, [ConstantValue(key), owner], {}))
            value.changes.append(owner)
            _name(interp, owner, value, key)
    if told:
        SuperValue(host, value).get_attr(interp, "__init_subclass__").realize().call(interp, [], kwargs)
    return value


def _name(interp: Interpreter, owner: ObjectValue, cls: NewClassValue, key: str) -> None:
    try:
        owner.call_method(interp, "__set_name__", [cls, ConstantValue(key)], {})
    except Raised as raised:
        text = f"Error calling __set_name__ on {owner.cls.__name__!r} instance {key!r} in {cls.obj.__name__!r}"
        if NOTES_SET_NAME:
            raised.value.call_method(interp, "add_note", [ConstantValue(text)], {})
            raise
        error = ExceptionValue(RuntimeError, [ConstantValue(text)])
        error.context = raised.value
        error.store(interp, "__cause__", raised.value)
        raise Raised(error) from None


@handles_each(*{vars(meta)["__init__"] for meta in _METAS if "__init__" in vars(meta)} - {type.__init__})
def _initialize(function: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """What a metaclass of a library does with a new class, which does not look at the namespace."""
    cls = args[0].realize()
    assert isinstance(cls, NewClassValue)
    cls.change(interp, function, [*args[1:3], NONE], kwargs)
    return NONE


handles_all(
    {
        type.__init__: lambda interp, args, kwargs: NONE,
        type.__call__: lambda at, args, kw: ClassValue.construct(args[0].realize(), at, args[1:], kw, plain=True),  # type: ignore[arg-type]
        vars(type)["__prepare__"]: lambda interp, args, kwargs: DictValue({}),
    }
)


@handles(type.__setattr__, type.__delattr__)
def _change_class(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    cls, name, *stored = (arg.realize() for arg in args)
    if not isinstance(cls, NewClassValue):
        raise Break("unsupported-attribute", f"an attribute of {cls.describe()} is set by a metaclass")
    cls.change(interp, type.__setattr__ if stored else type.__delattr__, [name, *stored], {})
    return NONE


def _host_of(interp: Interpreter, name: str, value: Value) -> Any:
    """An entry of a class: what Python looks at itself, as it is, and stand-ins."""
    if name[:2] != "__" or not isinstance(value, (SequenceValue, DictValue, SetValue)):
        return stand_in(interp, value)
    return interp.hosts([value], {}, "unsupported-instruction", f"a class is made with {name}")[0][0]


@handles_each(dataclasses.dataclass, functools.total_ordering)
def _decorated(decorator: Any, interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    """Functions that Python itself gives a class: methods made of its fields, or of its comparisons."""
    if not args:
        return PartialValue(interp.tracer.known(decorator), [], kwargs)
    cls = args[0].realize()
    if not isinstance(cls, NewClassValue) or "slots" in kwargs or len(args) > 1:
        raise Break("unsupported-call", f"{decorator.__name__}() of {cls.describe()}")
    fields = {name: entry.realize() for name, entry in cls.entries.items() if name[:2] != "__"}
    if any(isinstance(entry, (ListValue, DictValue, SetValue)) for entry in fields.values()):
        raise Break("unsupported-call", "a class is decorated that has defaults that may change")
    cls.change(interp, decorator, [], kwargs)
    return cls
