"""Nested arguments and results as JSON-able data, with tensors by number: what a bundle knows of a call."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any

import torch

_PLAIN = (type(None), bool, int, float, str)


class NotPlain(Exception):
    """A value is neither a tensor, nor plain, nor made of such."""


def write(value: Any, number: Callable[[torch.Tensor], int]) -> list[Any]:
    """Return what `read` makes the value of again.

    Raises:
        NotPlain: the value holds something else than tensors, plain values, lists, dicts, data classes and the like.
    """
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return ["tensor", number(value)]
    if kind in _PLAIN:
        return ["value", value]
    if kind is torch.dtype or kind is torch.device:
        return [kind.__name__, str(value).removeprefix("torch.")]
    if kind in (list, tuple, torch.Size):
        return ["list" if kind is list else "tuple", [write(item, number) for item in value]]
    if kind is dict and all(type(key) in _PLAIN for key in value):
        return ["dict", [[key, write(item, number)] for key, item in value.items()]]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        pairs = list(zip(value._fields, value, strict=True))
    elif is_dataclass(kind):
        # A dict of results is given what it holds, and not the fields that it leaves out.
        pairs = (
            list(value.items()) if isinstance(value, dict) else [(f.name, getattr(value, f.name)) for f in fields(kind)]
        )
    else:
        raise NotPlain(f"{kind.__module__}.{kind.__qualname__}")
    if "<" in kind.__qualname__:
        raise NotPlain(f"{kind.__qualname__}, a class made inside a function")
    return ["object", kind.__module__, kind.__qualname__, [[name, write(item, number)] for name, item in pairs]]


def read(tree: Sequence[Any], tensors: Callable[[int], Any], *, dicts: bool = False) -> Any:
    """Inverse of `write`; classes are imported by name, a dict stands for one that is not there where `dicts`."""
    kind, content = tree[0], tree[-1]

    def inner(item: Sequence[Any]) -> Any:
        return read(item, tensors, dicts=dicts)

    if kind in _READERS:
        return _READERS[kind](content, inner, tensors)
    fields = {name: inner(item) for name, item in content}
    try:
        return attrgetter(tree[2])(importlib.import_module(tree[1]))(**fields)
    except (ImportError, AttributeError):
        if not dicts:
            raise
        return fields


_READERS: Mapping[str, Callable[..., Any]] = {
    "tensor": lambda content, inner, tensors: tensors(content), "value": lambda content, inner, tensors: content,
    "dtype": lambda content, inner, tensors: getattr(torch, content),
    "device": lambda content, inner, tensors: torch.device(content),
    "list": lambda content, inner, tensors: list(map(inner, content)),
    "tuple": lambda content, inner, tensors: tuple(map(inner, content)),
    "dict": lambda content, inner, tensors: {key: inner(item) for key, item in content},
}  # fmt: skip


def write_signature(signature: inspect.Signature) -> list[list[Any]]:
    """Return [name, kind, default] of each parameter; a default that is not plain is left out, as one of no use."""
    rows = []
    for parameter in signature.parameters.values():
        default: list[Any] | None = None
        if parameter.default is not inspect.Parameter.empty:
            try:
                default = write(parameter.default, _no_tensor)
            except NotPlain:
                default = ["absent"]
        rows.append([parameter.name, int(parameter.kind), default])
    return rows


def read_signature(rows: Sequence[Sequence[Any]]) -> inspect.Signature:
    """Inverse of `write_signature`."""
    parameters = []
    for name, kind, default in rows:
        value = inspect.Parameter.empty if default is None else _ABSENT
        if default not in (None, ["absent"]):
            value = read(default, _no_tensor)  # type: ignore[arg-type]
        parameters.append(inspect.Parameter(name, inspect._ParameterKind(kind), default=value))
    return inspect.Signature(parameters)


_ABSENT = object()


def _no_tensor(_: Any) -> Any:
    raise NotPlain("a tensor")


def arguments(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Bind a call: the same call gives the same arguments, however they are passed.

    Raises:
        TypeError: the arguments don't fit.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    by_name = {}
    for name, value in bound.arguments.items():
        if value is not _ABSENT:
            named = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            by_name[name] = dict(sorted(value.items())) if named else value
    return by_name
