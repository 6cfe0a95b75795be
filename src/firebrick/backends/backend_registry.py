"""Backends by name: ours, those that users register, those of installed packages, and PyTorch's own."""

from __future__ import annotations

import importlib
import importlib.metadata
import threading
from collections.abc import Callable, Sequence
from typing import Any, overload

from torch import fx

from firebrick.errors import BackendError, ConfigError
from firebrick.extend import SubgraphCompiler, Target

Backend = Callable[..., Callable[..., Any]]

FIREBRICK = "firebrick"
"""The backend that this package is; the pipeline runs it, not this registry."""

_GROUP = "firebrick.backends"
_OWN = {
    "eager": "firebrick.backends.aot_eager:eager", "aot_eager": "firebrick.backends.aot_eager:aot_eager",
    "onnxrt": "firebrick.backends.onnxruntime:onnxrt", "openvino": "firebrick.backends.openvino:openvino",
    "tvm": "firebrick.backends.tvm:tvm", "torchscript": "firebrick.backends.torchscript:torchscript",
}  # fmt: skip
_TORCH = "firebrick.backends.torch_backends"

_lock = threading.Lock()
_registered: dict[str, Backend] = {}


def _load(place: str) -> Any:
    """The one place that imports a backend, when it is first asked for."""
    module, _, name = place.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, name) if name else loaded


@overload
def register_backend(fn: Backend, *, name: str | None = None) -> Backend: ...
@overload
def register_backend(fn: None = None, *, name: str | None = None) -> Callable[[Backend], Backend]: ...
def register_backend(fn: Backend | None = None, *, name: str | None = None) -> Any:
    """Make a backend function `(gm, example_inputs) -> callable` known by name; also a decorator.

    Raises:
        ConfigError: it can't be called, or the name is taken by one of our own.
    """
    if fn is None:
        return lambda f: register_backend(f, name=name)
    if not callable(fn):
        raise ConfigError(f"a backend is a function of (gm, example_inputs), got {type(fn).__name__}")
    name = name or getattr(fn, "__name__", "")
    if not name or name == FIREBRICK or name in _OWN:
        raise ConfigError(f"a backend can't be named {name!r}", fix="choose another name")
    with _lock:
        _registered[name] = fn
    return fn


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {e.name: e for e in importlib.metadata.entry_points(group=_GROUP)}


def list_backends() -> list[str]:
    """Return the names that `compile(backend=...)` takes."""
    with _lock:
        names = {FIREBRICK, *_OWN, *_registered}
    return sorted({*names, *_entry_points(), *_load(_TORCH).names()})


def find_backend(backend: str | Backend | Target | SubgraphCompiler) -> Backend:
    """Return the function of a backend; a machine or an engine gets what it can run of each graph.

    Raises:
        BackendError: no backend has the name, or its package can't be imported.
    """
    if isinstance(backend, (Target, SubgraphCompiler)):
        return _load("firebrick.backends.engines:engine_backend")(backend)
    if callable(backend):
        return backend
    with _lock:
        registered = _registered.get(backend)
    if registered is not None:
        return registered
    if backend in _OWN:
        return _load(_OWN[backend])
    entry = _entry_points().get(str(backend))
    if entry is not None:
        try:
            loaded: Backend = entry.load()
        except ImportError as error:
            raise BackendError(f"backend {backend!r} can't be imported: {error}") from error
        return loaded
    adapter = _load(_TORCH)
    if backend in adapter.names():
        return adapter.adapt(backend)
    raise BackendError(f"unknown backend {backend!r}", fix=f"use one of {', '.join(list_backends())}, or a function")


def call_backend(
    backend: Backend, gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any
) -> Callable[..., Any]:
    """Run a backend on a graph.

    Raises:
        BackendError: it raised, or returned something that can't be called.
    """
    name = getattr(backend, "__name__", type(backend).__name__)
    try:
        compiled = backend(gm, example_inputs, **options)
    except Exception as error:
        raise BackendError(f"backend {name} raised {type(error).__name__}: {error}") from error
    if not callable(compiled):
        raise BackendError(
            f"backend {name} returned {type(compiled).__name__}, which can't be called",
            fix="return a function of the graph's inputs, for example gm.forward",
        )
    return compiled
