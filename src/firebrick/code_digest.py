"""Content hashes of code, for cache keys: the same code gives the same hash in every process and on every path."""

from __future__ import annotations

import hashlib
import types
from functools import partial
from typing import Any

import torch


def content_digest(*values: Any) -> str:
    """Hash what `values` do: the byte code and constants of functions and classes, and the plain data of objects.

    Helper functions of the same module that a function names are followed. File names, line numbers and
    addresses do not count. Objects that are neither plain data nor code count by their type and `__dict__`.
    """
    hasher = hashlib.blake2b(digest_size=16)
    seen: dict[int, Any] = {}  # by identity; holding the values keeps identities from being used again
    for value in values:
        _feed(hasher, value, seen)
    return hasher.hexdigest()


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)


def _feed(hasher: Any, value: Any, seen: dict[int, Any]) -> None:
    if isinstance(value, _PLAIN):
        hasher.update(f"{type(value).__name__}:{value!r};".encode())
        return
    if id(value) in seen:
        hasher.update(b"seen;")
        return
    seen[id(value)] = value
    if isinstance(value, (tuple, list)):
        hasher.update(f"{type(value).__name__}{len(value)};".encode())
        for item in value:
            _feed(hasher, item, seen)
    elif isinstance(value, (set, frozenset)):
        _feed(hasher, sorted(map(repr, value)), seen)
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            _feed(hasher, (repr(key), value[key]), seen)
    elif isinstance(value, torch.Tensor):
        _feed_tensor(hasher, value)
    elif isinstance(value, types.CodeType):
        _feed_code(hasher, value, seen)
    elif isinstance(value, types.FunctionType):
        _feed_function(hasher, value, seen)
    elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
        _feed(hasher, value.__func__, seen)
    elif isinstance(value, property):
        _feed(hasher, (value.fget, value.fset), seen)
    elif isinstance(value, partial):
        _feed(hasher, (value.func, value.args, value.keywords), seen)
    elif isinstance(value, type):
        _feed_class(hasher, value, seen)
    else:
        _feed_object(hasher, value, seen)


def _feed_tensor(hasher: Any, tensor: torch.Tensor) -> None:
    hasher.update(f"tensor:{tensor.dtype}:{tuple(tensor.shape)};".encode())
    data = tensor.detach().cpu().contiguous()
    if data.numel():
        hasher.update(data.reshape(-1).view(torch.uint8).numpy())


def _feed_code(hasher: Any, code: types.CodeType, seen: dict[int, Any]) -> None:
    hasher.update(code.co_code)
    _feed(hasher, (code.co_names, code.co_varnames, code.co_freevars), seen)
    for constant in code.co_consts:
        _feed(hasher, constant, seen)


def _feed_function(hasher: Any, function: types.FunctionType, seen: dict[int, Any]) -> None:
    _feed(hasher, function.__code__, seen)
    _feed(hasher, (function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            _feed(hasher, cell.cell_contents, seen)
        except ValueError:  # a cell that is not filled yet
            hasher.update(b"empty;")
    for name in function.__code__.co_names:
        helper = function.__globals__.get(name)
        if (isinstance(helper, types.FunctionType) and helper.__module__ == function.__module__) or isinstance(
            helper, _PLAIN
        ):
            _feed(hasher, helper, seen)


def _feed_class(hasher: Any, cls: type, seen: dict[int, Any]) -> None:
    hasher.update(f"class:{cls.__module__}.{cls.__qualname__};".encode())
    if cls.__module__.split(".")[0] in ("builtins", "torch", "abc", "typing"):
        return
    for base in cls.__bases__:
        _feed(hasher, base, seen)
    for key in sorted(vars(cls)):
        if not key.startswith("__") or key in ("__call__", "__init__"):
            _feed(hasher, (key, vars(cls)[key]), seen)


def _feed_object(hasher: Any, value: Any, seen: dict[int, Any]) -> None:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if isinstance(name, str) and callable(value):
        hasher.update(f"named:{getattr(value, '__module__', '')}.{name};".encode())
        return
    _feed(hasher, type(value), seen)
    state = getattr(value, "__dict__", None)
    if isinstance(state, dict):
        # Private fields hold what a plug-in remembers between runs, which is not what it does.
        _feed(hasher, {key: item for key, item in state.items() if not key.startswith("_")}, seen)
