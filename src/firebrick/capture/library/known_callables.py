"""Callables known by identity: rules of their own, Python stand-ins, graph functions, foldable functions."""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from firebrick.capture.marks import IN_GRAPH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FunctionType

    from firebrick.capture.interpreter.interpreter import Interpreter
    from firebrick.capture.values.base import Args, Kwargs, Value

    Handler = Callable[[Interpreter, Args, Kwargs], Value]

_HANDLERS: dict[Any, Handler] = {}
POLYFILLS: dict[Any, FunctionType] = {}
"""Callable -> Python function that is inlined in its place."""
CODE_HANDLERS: dict[Any, Callable[[Interpreter, Any, Args, Kwargs], Value]] = {}
"""Code object -> rule for all functions that share it: closures that a library makes."""
MARKED: dict[str, Callable[[Interpreter, Any, Args, Kwargs], Value]] = {}
"""Attribute that marks a Python function -> its rule."""
NAMED: dict[tuple[str, str], Callable[[Interpreter, Any, Args, Kwargs], Value]] = {}
"""Module and qualified name of a Python function that is not imported for its sake -> its rule."""
GRAPH_FUNCTIONS: dict[int, Any] = {}
"""Identity -> callable whose calls are put in the graph."""
GRAPH_TYPES: list[type] = []
"""Classes of callables whose calls are put in the graph."""
FOLDABLE: dict[Any, Any] = {}
"""Callables without effect that may be evaluated on constants."""
FOLDABLE_MODULES: set[str] = set()
"""Modules whose built-in functions have no effect."""


_BOUND = (types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType)


def key_of(obj: Any) -> Any:
    """What a callable is found by; methods of classes written in C are new objects at each read."""
    owner = obj.__self__ if isinstance(obj, _BOUND) else None
    if isinstance(owner, type):
        return (owner, obj.__name__)
    return id(obj) if not isinstance(obj, str) else obj


_KEEP: list[Any] = []


def handles(*objects: Any) -> Callable[[Handler], Handler]:
    """Register the decorated function as the rule of `objects`."""

    def register(handler: Handler) -> Handler:
        for obj in objects:
            _KEEP.append(obj)
            _HANDLERS[key_of(obj)] = handler
        return handler

    return register


def handles_all(rules: Mapping[Any, Handler]) -> None:
    """Register a rule for each object of a table."""
    for obj, handler in rules.items():
        handles(obj)(handler)


def replaces(*objects: Any) -> Callable[[Any], Any]:
    """Register the decorated Python function as what is inlined in place of `objects`."""

    def register(function: Any) -> Any:
        for obj in objects:
            _KEEP.append(obj)
            POLYFILLS[key_of(obj)] = function
        return function

    return register


def find(obj: Any) -> Handler | None:
    """The rule of a callable, or None."""
    return _HANDLERS.get(key_of(obj))


def polyfill(obj: Any) -> Any:
    """The Python stand-in of a callable, or None."""
    return POLYFILLS.get(key_of(obj))


def is_graph_function(obj: Any) -> bool:
    """Whether calls go into the graph."""
    return id(obj) in GRAPH_FUNCTIONS or (type(obj) in GRAPH_TYPES and id(obj) not in POLYFILLS)


def is_special(function: FunctionType) -> bool:
    """Whether a Python function is known by identity, so that its code does not say what it does."""
    key = id(function)
    return key in _HANDLERS or key in GRAPH_FUNCTIONS or key in POLYFILLS or rule_of(function) is not None


def rule_of(function: FunctionType) -> Any:
    """The rule of a Python function that is known by a mark, by its code or by its name; None for others."""
    if function.__dict__:
        for name in MARKED:
            if name in function.__dict__:
                return MARKED[name]
    rule = CODE_HANDLERS.get(function.__code__) or NAMED.get((function.__module__, function.__qualname__))
    if rule is None and (rules := sys.modules.get("torch._dynamo.trace_rules")) is not None:
        return MARKED[IN_GRAPH] if id(function) in rules._allowed_callable_ids else None
    return rule


def is_foldable(obj: Any) -> bool:
    """Whether it may be evaluated on constants."""
    if key_of(obj) in FOLDABLE:
        return True
    return getattr(obj, "__module__", None) in FOLDABLE_MODULES and not hasattr(obj, "__code__")


OPAQUE_MODULES: set[str] = set()
"""Packages whose Python functions are not inlined."""
TRANSPARENT: set[Any] = set()
"""Functions of these packages that are."""
TRANSPARENT_MODULES = {"firebrick.capture.library.polyfills"}
"""Modules of these packages that are."""


def is_opaque(module: str | None, function: Any) -> bool:
    """Whether a Python function is not to be looked into."""
    if module is None or module in TRANSPARENT_MODULES or function in TRANSPARENT:
        return False
    name = module
    while name:
        if name in OPAQUE_MODULES:
            return True
        name = name.rpartition(".")[0]
    return False
