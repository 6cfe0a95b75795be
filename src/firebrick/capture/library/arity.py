"""How many arguments built-in callables take, and of which names: what does not fit is left to Python to refuse."""

from __future__ import annotations

import builtins
import collections
import functools
import inspect
import itertools
import sys
import types
from dataclasses import dataclass
from typing import Any

import torch

from firebrick.capture.breaks.catalogue import Break
from firebrick.capture.library.known_callables import key_of
from firebrick.capture.values.base import Args, Kwargs

_NOTHING: Any = lambda: 0  # noqa: E731
_ONE: Any = lambda one, /: 0  # noqa: E731
_OPTIONAL: Any = lambda one=0, /: 0  # noqa: E731
_ANY: Any = lambda *many: 0  # noqa: E731
_UPDATE: Any = lambda other=(), /, **named: 0  # noqa: E731

UNDESCRIBED: dict[Any, Any] = {
    # classes and functions
    **dict.fromkeys((bool, builtins.dir, frozenset, set, vars), _OPTIONAL),
    **dict.fromkeys((collections.OrderedDict, dict), _UPDATE),
    **dict.fromkeys((staticmethod, classmethod), _ONE),
    collections.defaultdict: lambda factory=None, other=(), /, **named: 0,
    collections.deque: lambda iterable=(), maxlen=None: 0,
    builtins.filter: lambda function, iterable, /: 0,
    builtins.getattr: lambda owner, name, default=0, /: 0,
    builtins.iter: lambda first, sentinel=0, /: 0,
    builtins.map: lambda function, first, /, *others: 0,
    **dict.fromkeys((max, min), lambda first, /, *others, key=None, default=None: 0),
    builtins.next: lambda iterator, default=0, /: 0,
    **dict.fromkeys((range, slice), lambda first, second=0, third=0, /: 0),
    super: lambda kind=None, owner=None, /: 0,
    builtins.type: lambda first, bases=0, names=0, /, **options: 0,
    builtins.zip: lambda *many, strict=False: 0,
    functools.cmp_to_key: lambda mycmp: 0,
    functools.partial: lambda function, /, *args, **named: 0,
    functools.reduce: lambda function, iterable, initial=0, /: 0,
    itertools.chain: _ANY,
    itertools.islice: lambda iterable, first, second=0, third=0, /: 0,
    itertools.product: lambda *many, repeat=1: 0,
    itertools.repeat: lambda object, times=0: 0,
    itertools.zip_longest: lambda *many, fillvalue=None: 0,
    # methods
    **{
        getattr(kind, name): shape
        for kinds, names, shape in (
            ((dict, collections.OrderedDict), "clear copy items keys values", _NOTHING),
            ((dict,), "pop", lambda key, default=0, /: 0),
            ((collections.OrderedDict,), "pop", lambda key, default=0: 0),
            ((dict, collections.OrderedDict), "update", _UPDATE),
            ((set, frozenset), "copy", _NOTHING),
            ((set, frozenset), "difference intersection union", _ANY),
            ((set, frozenset), "isdisjoint issubset issuperset symmetric_difference", _ONE),
            ((set,), "clear pop", _NOTHING),
            ((set,), "difference_update intersection_update update", _ANY),
            ((set,), "add discard remove symmetric_difference_update", _ONE),
            ((collections.deque,), "clear copy pop popleft reverse", _NOTHING),
            ((collections.deque,), "append appendleft count extend extendleft remove", _ONE),
            ((collections.deque,), "index", lambda value, start=0, stop=0, /: 0),
            ((collections.deque,), "insert", lambda index, value, /: 0),
            ((collections.deque,), "rotate", _OPTIONAL),
            ((types.GeneratorType,), "close", _NOTHING),
            ((types.GeneratorType,), "send", _ONE),
            ((types.GeneratorType,), "throw", lambda kind, value=0, traceback=0, /: 0),
        )
        for kind in kinds
        for name in names.split()
    },
}
"""Callables that have no signature of their own in some version of Python -> a function of the same one."""
_BY_KEY = {key_of(obj): inspect.signature(shape) for obj, shape in UNDESCRIBED.items()}


@dataclass(frozen=True, slots=True)
class _Arity:
    """Numbers of positional arguments that fit without a look at the signature."""

    least: float
    most: float
    signature: inspect.Signature

    @classmethod
    def of(cls, signature: inspect.Signature) -> _Arity:
        least = most = 0.0
        for one in signature.parameters.values():
            needed = one.default is one.empty
            if one.kind is one.VAR_POSITIONAL:
                most = float("inf")
            elif one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD):
                least, most = least + needed, most + 1
            elif one.kind is one.KEYWORD_ONLY and needed:
                least = float("inf")
        return cls(least, most, signature)

    def fit(self, obj: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """The arguments, those that have a place by their places; raises Break: the callable takes others."""
        if not kwargs and self.least <= len(args) <= self.most:
            return args, kwargs
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError:
            name = getattr(obj, "__qualname__", type(obj).__name__)
            raise Break("unsupported-call", f"{name}() is called with arguments that it does not take") from None
        # the rules of the standard library's C code read arguments by place
        in_library = isinstance(obj, types.MethodDescriptorType) or obj.__module__ in sys.stdlib_module_names
        return (bound.args, bound.kwargs) if in_library and type(obj) is not types.FunctionType else (args, kwargs)


_ARITIES: dict[Any, _Arity | None] = {}


def _arity(obj: Any, key: Any, *, bound: bool) -> _Arity | None:
    """What a callable takes; None if nothing says so."""
    if key in _ARITIES:
        return _ARITIES[key]
    signature = _BY_KEY.get(key)
    if signature is None:
        try:
            signature = inspect.signature(obj)
        except (TypeError, ValueError):
            _ARITIES[key] = None
            return None
        if bound:
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    arity = _ARITIES[key] = _Arity.of(signature)
    return arity


def fit(obj: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a callable that has a rule, by place where they have one; raises Break: they don't fit."""
    arity = _arity(obj, key_of(obj), bound=False)
    return (args, kwargs) if arity is None else arity.fit(obj, args, kwargs)


def fit_method(kind: type, name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a method written in C, by place where they have one; raises Break: they don't fit."""
    method = getattr(kind, name, None)
    if not isinstance(method, types.MethodDescriptorType) or method.__objclass__ is torch._C.TensorBase:
        return args, kwargs  # a tensor's method looks at its arguments itself
    arity = _arity(method, key_of(method), bound=True)
    return (args, kwargs) if arity is None else arity.fit(method, args, kwargs)
