"""Rules of `class` statements, of `type` with three arguments, and of what decorates classes and what is in them."""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import enum
import functools
import types
from functools import partial
from typing import Any

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.interpreter.operators import host_copy
from firebrick.capture.library.known_callables import handles, handles_all, handles_each
from firebrick.capture.values.base import Args, Interpreter, Kwargs, NotConstant, Raised, Value
from firebrick.capture.values.classes import SuperValue
from firebrick.capture.values.constant import ConstantValue
from firebrick.capture.values.function import CellValue, FunctionValue, PartialValue
from firebrick.capture.values.mapping import DictValue, SetValue
from firebrick.capture.values.new_class import NewClassValue, build, make_class, run, stand_in
from firebrick.capture.values.object import MISSING, ObjectValue, class_lookup
from firebrick.capture.values.sequence import ListValue, SequenceValue

_METAS = ("builtins", "abc", "enum", "typing")
"""Modules whose metaclasses do nothing that is seen."""


_Unseen: Any = type("_Unseen", (), {"__init_subclass__": lambda cls: None})  # the first base of a class in the making

handles_all(
    {
        function: partial(build, function)
        for function in (
            *(property, staticmethod, classmethod, functools.cached_property, dataclasses.field, enum.auto),
            *(getattr(enum, name) for name in ("member", "nonmember") if hasattr(enum, name)),
        )
    }
)


@handles(builtins.__build_class__)
def _class_statement(interp: Interpreter, args: Args, kwargs: Kwargs) -> Value:
    body, name, *bases = args
    function = body.realize()
    if not isinstance(function, FunctionValue):
        raise Break("unsupported-instruction", "class definition")
    return new_class(interp, name.as_constant(), bases, kwargs, interp.run_body(function))


def new_class(interp: Interpreter, name: str, bases: list[Value], keywords: Kwargs, entries: dict[str, Value]) -> Value:
    """Make a class; raises Break: code of the program's would run while it is made."""
    try:
        hosts = tuple(base.realize().as_constant() for base in bases)
        named = {key: value.realize().as_constant() for key, value in keywords.items()}
        if "__classdictcell__" in entries:  # what evaluates type parameters looks into the real namespace
            raise NotConstant("scope of type parameters")
    except NotConstant as error:
        raise Break("unsupported-instruction", f"a class is made with a {error} that is not constant") from None
    cell = entries.pop("__classcell__", None)
    entries.setdefault("__module__", ConstantValue(interp.globals.get("__name__")))
    made = {key: _host_of(interp, key, value.realize()) for key, value in entries.items()}
    resolved = types.resolve_bases(hosts)
    meta = run(interp, lambda: types.prepare_class(name, resolved, dict(named))[0], [], {})
    owners = [class_lookup(meta, method)[1] for method in ("__new__", "__init__", "__prepare__")]
    hooked = {c.__module__ for base in resolved for c in base.__mro__ if "__init_subclass__" in vars(c)} - {*_METAS}
    seen = f"class {name}, which code of its bases or metaclass sees being made"
    if (hooked and resolved != hosts) or not all(owner is None or owner.__module__ in _METAS for owner in owners):
        raise Break("unsupported-instruction", seen)
    how = ((_Unseen, *hosts), {"metaclass": meta}) if hooked else (hosts, named)
    host = run(interp, lambda: make_class(name, *how, made), [], {})
    if hooked:
        with contextlib.suppress(TypeError):
            host.__bases__ = hosts
        if host.__bases__ != hosts:  # which have another layout
            raise Break("unsupported-instruction", seen)
    value = NewClassValue(host, bases, keywords, entries)
    interp.tracer.remember(host, value)
    interp.tracer.graph.new_objects[id(host)] = value
    value.register(interp)
    if isinstance(cell, CellValue):
        cell.content = value
    for key, entry in entries.items():
        owner = entry.realize()
        if isinstance(owner, ObjectValue) and interp.lookup(owner.cls, "__set_name__")[0] is not MISSING:
            value.seen = True
            try:
                owner.call_method(interp, "__set_name__", [value, ConstantValue(key)], {})
            except Raised:
                raise Break("unsupported-instruction", f"__set_name__() of {key} of class {name} raises") from None
    if hooked:
        value.seen = True
        options = {key: option for key, option in keywords.items() if key != "metaclass"}
        SuperValue(host, value).get_attr(interp, "__init_subclass__").realize().call(interp, [], options)
    return value


def _host_of(interp: Interpreter, name: str, value: Value) -> Any:
    """An entry of a class: what Python looks at itself, as it is, and stand-ins."""
    if name[:2] != "__" or not isinstance(value, (SequenceValue, DictValue, SetValue)):
        return stand_in(interp, value)
    try:
        return host_copy(interp, value)
    except NotConstant as error:
        raise Break("unsupported-instruction", f"{name} of a class holds a {error}") from None


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
