"""Callables known by identity: rules of their own, Python stand-ins, graph functions, foldable functions."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from firebrick.capture.marks import IN_GRAPH, NONSTRICT, own_mark
from firebrick.capture.values.base import Args, Interpreter, Kwargs, Value

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


_C_OR_PYTHON = (types.BuiltinFunctionType, types.FunctionType)
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
    return functools.partial(_register, _HANDLERS, objects)


def handles_all(rules: Mapping[Any, Handler]) -> None:
    """Register a rule for each object of a table."""
    for obj, handler in rules.items():
        handles(obj)(handler)


def handles_each(*objects: Any) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Register the decorated function as the rule of each of `objects`; it is given the object first."""

    def register(handler: Callable[..., Value]) -> Callable[..., Value]:
        handles_all({obj: functools.partial(handler, obj) for obj in objects})
        return handler

    return register


def replaces(*objects: Any) -> Callable[[Any], Any]:
    """Register the decorated Python function as what is inlined in place of `objects`."""
    return functools.partial(_register, POLYFILLS, objects)


def _register(table: dict[Any, Any], objects: tuple[Any, ...], rule: Any) -> Any:
    _KEEP.extend(objects)
    table.update({key_of(obj): rule for obj in objects})
    return rule


def find(obj: Any) -> Handler | None:
    """The rule of a callable, or None."""
    return _HANDLERS.get(key_of(obj))


def polyfill(obj: Any) -> Any:
    """The Python stand-in of a callable, or None; the last that users gave `torch.compiler.substitute_in_graph`."""
    own = POLYFILLS.get(key_of(obj))
    functions = sys.modules.get("torch._dynamo.variables.functions")
    if own is not None or functions is None or not isinstance(obj, _C_OR_PYTHON):
        return own
    traced = functions.PolyfilledFunctionVariable._get_polyfill_handlers().get(obj)
    polyfill = getattr(traced, "__torch_dynamo_polyfill__", None)
    return None if str(getattr(polyfill, "__module__", "torch.")).startswith("torch.") else polyfill


def is_graph_function(obj: Any) -> bool:
    """Whether calls go into the graph."""
    return (id(obj) in GRAPH_FUNCTIONS or type(obj) in GRAPH_TYPES) and id(obj) not in POLYFILLS


def is_known(obj: Any) -> bool:
    """Whether calls of it have a rule, go into the graph or are those of a stand-in."""
    return find(obj) is not None or is_graph_function(obj) or polyfill(obj) is not None


def unwrapped(interp: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """The rule of a wrapper that means nothing where code is captured."""
    return interp.tracer.known(function.__wrapped__).call(interp, args, kwargs)


def is_special(function: FunctionType) -> bool:
    """Whether a Python function is known by identity, so that its code does not say what it does."""
    key = id(function)
    return key in _HANDLERS or key in GRAPH_FUNCTIONS or key in POLYFILLS or rule_of(function) is not None


def rule_of(function: FunctionType) -> Any:
    """The rule of a Python function that is known by a mark, by its code or by its name; None for others."""
    if function.__dict__:
        for name in MARKED:
            if own_mark(function, name) is not None:
                return MARKED[name]
    code = function.__code__
    rule = (
        CODE_HANDLERS.get(code)
        or NAMED.get((function.__module__, function.__qualname__))
        or NAMED.get((str(function.__globals__.get("__name__")), code.co_qualname))  # a wrapper with another's names
    )
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rule is None and rules is not None and id(function) in rules._allowed_callable_ids:
        rule = MARKED[NONSTRICT if id(function) in rules._nonstrict_trace_callable_ids else IN_GRAPH]
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
