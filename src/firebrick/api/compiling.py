"""`compile`, `optimize` and the other ways to switch compiling on and off."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypedDict, TypeVar, Unpack, overload

import torch
from torch import fx, nn

from firebrick import backends, trace
from firebrick.api import accuracy
from firebrick.api.compiled_backward import compiled_backward
from firebrick.api.compiled_module import compile_module, original_of, state_of
from firebrick.api.recorded_calls import Calls
from firebrick.api.settings import Settings, check_flag
from firebrick.api.switches import OFF, RUN_ONLY, Switch, blocks, call_switched, later, loaded
from firebrick.backends.aten import run_aten, run_joint, with_views
from firebrick.capture import hook
from firebrick.capture.entry import entry_of
from firebrick.capture.marks import DISABLED, ORIGINAL, own_mark
from firebrick.capture.stance import DEFAULT, FRONT_END, current
from firebrick.config import Config
from firebrick.errors import BackendError, ConfigError
from firebrick.extend import Pass, SubgraphCompiler, Target
from firebrick.fakes.node_values import plain_copy
from firebrick.report import recorder

F = TypeVar("F", bound=Callable[..., Any])


class _Options(TypedDict, total=False):
    fullgraph: bool
    dynamic: bool | None
    backend: str | Callable[..., Any] | Target | SubgraphCompiler | None
    mode: str | None
    options: Mapping[str, Any] | None
    name: str | None
    disable: bool
    recompile_limit: int | None
    isolate_recompiles: bool
    shapes_spec: Any
    passes: Sequence[Pass]


_SETTINGS = "_firebrick_settings"
_CALLS = "_firebrick_calls"


@overload
def compile(model: F, **options: Unpack[_Options]) -> F: ...
@overload
def compile(model: None = None, **options: Unpack[_Options]) -> Callable[[F], F]: ...
def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | Target | SubgraphCompiler | None = backends.FIREBRICK,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    shapes_spec: Any = None,
    passes: Sequence[Pass] = (),
) -> Any:
    """Compile a function or module: it is captured, and compiled, when it is first called. Also a decorator.

    It takes the arguments of torch.compile, and `passes`. What has no effect yet is told in a warning.

    Args:
        model: a function, or an nn.Module; an object of the same kind comes back. A compiled module shares its
            parameters, buffers and attributes with the original. Of a class the calls of all its objects are compiled.
        fullgraph: raise `Unsupported` where the function can't be one graph.
        dynamic: makes symbols of sizes, so that one compile serves many: True of all, None of those that differ from
            an earlier call's, False of none. What needs a number is guarded.
        backend: a name of `list_backends()`, a function `(gm, example_inputs) -> callable`, or a machine or an engine
            of one's own (`firebrick.extend`).
        mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs". The two last measure, once
            a machine, which kernel is fastest for each matmul by a constant weight (seconds for each shape);
            "reduce-overhead" records what runs on a GPU as a CUDA graph from the second call on, unmeasured; CPUs have
            no such overhead.
        options: settings by name; `firebrick options` lists them.
        name: what prints and warnings call its graphs.
        disable: return `model` as it is.
        recompile_limit: compiles before other calls run as plain Python; None takes the option's.
        isolate_recompiles: has no effect, since no compile shares its limit with another.
        shapes_spec: sizes that vary; like `dynamic=True`.
        passes: optimizations of your own, see `firebrick.extend`.

    Raises:
        ConfigError: `model` can't be called or have an option, an unknown mode or option, or an argument of the wrong
            type.
        BackendError: an unknown backend.
    """
    check_flag("disable", disable)
    check_flag("isolate_recompiles", isolate_recompiles)
    settings = Settings.make(
        backend,
        mode=mode,
        fullgraph=fullgraph,
        dynamic=True if shapes_spec is not None and dynamic is None else dynamic,
        options=options,
        passes=passes,
        name=name,
        recompile_limit=recompile_limit,
    )
    if model is None:
        return lambda fn: fn if disable else _compile(fn, settings)
    return model if disable else _compile(model, settings)


def _compile(model: Any, settings: Settings) -> Any:
    if isinstance(model, nn.Module):
        if (settings.options or {}).get("compiled_backward"):
            raise ConfigError(
                "compiled_backward is an option of functions: a module's backward runs when its call is over",
                fix="put `with firebrick.compiled_backward():` around loss.backward(), or compile the whole step",
            )
        return compile_module(model, settings)
    if inspect.isclass(model):
        call = inspect.getattr_static(model, "__call__", None)
        if not inspect.isfunction(call):
            raise ConfigError(f"objects of the class {model.__name__} can't be called", fix="compile a method of it")
        type.__setattr__(model, "__call__", compile_function(call, settings))
        return model
    if not callable(model):
        raise ConfigError(f"compile takes a function or a module, not an object of {type(model).__name__}")
    return compile_function(model, settings)


def compile_function(fn: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    """Return a function that runs `fn` compiled."""
    fn = original_callable(fn)
    scope = hook.Scope()
    calls, forced = Calls(fn), functools.cache(lambda backend, fn: settings.forced(backend, entry_of(fn)))
    call = hook.Wrapped(entry_of(fn), calls.watched(settings.capturer(scope)), scope)

    def compiled(*args: Any, **kwargs: Any) -> Any:
        if blocks.open or (FRONT_END in loaded and current() is not DEFAULT):
            return call_switched(fn, call, forced, args, kwargs)
        return call(*args, **kwargs)

    if settings.config.compiled_backward:
        compiled = compiled_backward(settings=settings)(compiled)
    compiled = later(fn) or compiled
    if hasattr(fn, "__name__"):
        functools.update_wrapper(compiled, fn)
    setattr(compiled, ORIGINAL, fn)
    setattr(compiled, _SETTINGS, settings)
    setattr(compiled, _CALLS, calls)
    return compiled


def original_callable(fn: Any) -> Any:
    """Return what a compiled function or module was made from."""
    if isinstance(fn, types.MethodType):
        return types.MethodType(original_callable(fn.__func__), fn.__self__)
    return original_of(fn) if isinstance(fn, nn.Module) else own_mark(fn, ORIGINAL, fn)


def compiled_settings(fn: Any) -> Settings | None:
    """Return how a function or module was compiled; None if it was not."""
    return getattr(state_of(fn), "settings", None) if isinstance(fn, nn.Module) else own_mark(fn, _SETTINGS)


def compiled_calls(fn: Any) -> Calls | None:
    """Return the calls that a function or module was compiled for; None if it was not compiled."""
    return getattr(state_of(fn), "calls", None) if isinstance(fn, nn.Module) else own_mark(fn, _CALLS)


class optimize:
    """Compile what runs in the block, or the decorated function or module.

    Args:
        backend: a name of `list_backends()`, a function `(gm, example_inputs) -> callable`, or a machine or an engine
            of one's own (`firebrick.extend`).
        nopython: raise `Unsupported` where a function can't be one graph.
        dynamic: as in `compile`.

    Example:
        with firebrick.optimize(my_compiler):
            model(x)
    """

    def __init__(
        self,
        backend: str | Callable[..., Any] | Target | SubgraphCompiler = backends.FIREBRICK,
        *,
        nopython: bool = False,
        dynamic: bool | None = None,
    ) -> None:
        self.settings = Settings.make(backend, fullgraph=nopython, dynamic=dynamic)
        self._scope = hook.Scope()
        self._capturer = self.settings.capturer(self._scope)
        self._active: list[AbstractContextManager[None]] = []

    def __call__(self, fn: F) -> F:
        """Compile a function or module."""
        return _compile(fn, self.settings)

    def __enter__(self) -> optimize:
        plain = current().name == "force_eager"
        block = hook.disabled() if plain else hook.installed(self._capturer, self._scope)
        block.__enter__()
        self._active.append(block)
        return self

    def __exit__(self, *exc: object) -> None:
        self._active.pop().__exit__(None, None, None)


def run(fn: Any = None) -> Any:
    """Use what was compiled before and compile nothing new: a context manager, or a decorator."""
    if fn is None:
        return Switch(RUN_ONLY)
    return _RunModule(fn) if isinstance(fn, nn.Module) else Switch(RUN_ONLY)(fn)


class _RunModule:
    """Calls a module with `run` on."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with Switch(RUN_ONLY):
            return self._module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def disable(fn: Any = None) -> Any:
    """Run as plain Python, uncompiled: a decorator for functions and classes, or a context manager.

    Captured code that calls a disabled function breaks its graph there.
    """
    if fn is None:
        return Switch(OFF)
    if inspect.isclass(fn):
        for name, member in list(vars(fn).items()):
            if inspect.isfunction(member):
                setattr(fn, name, _disabled(member))
        return fn
    if isinstance(fn, nn.Module):
        fn.forward = _disabled(fn.forward)
        return fn
    return _disabled(fn)


def _disabled(fn: Callable[..., Any]) -> Callable[..., Any]:
    plain = Switch(OFF)(original_callable(fn))
    setattr(plain, DISABLED, True)
    return plain


def torch_compile_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Compile a graph that torch.compile captured. Graphs with symbolic sizes run on eager kernels in this version."""
    if not all(isinstance(t, torch.Tensor) and _is_concrete(t) for t in example_inputs):
        recorder.note_once("symbolic", "firebrick: graphs with symbolic sizes run on eager kernels in this version")
        return gm.forward
    own = plain_copy(gm)  # the values of torch.compile's fake tensor mode stand for its guards
    own.meta["name"] = "graph"
    return accuracy.compile_graph(own, example_inputs, Settings.make(mode=mode, options=options).config)


def _is_concrete(tensor: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def aot(
    fn: Any,
    fw_compiler: Callable[[fx.GraphModule, list[Any]], Callable[..., Any]],
    bw_compiler: Callable[[fx.GraphModule, list[Any]], Callable[..., Any]] | None = None,
    partition: Callable[[trace.JointGraph], Iterable[fx.Node]] | None = None,
) -> Any:
    """Return `fn`, with its graphs traced to functional ATen and handed to `fw_compiler(gm, example_inputs)`.

    Args:
        bw_compiler: compiles backward graphs, when they are first needed; None takes `fw_compiler`. Its example inputs
            are fake tensors.
        partition: which nodes of a joint graph the forward saves for the backward, a function of a `JointGraph`; what
            else the backward needs it computes again. None: the fewest bytes without computing anything costly twice.
    """

    def checked(compiler: Callable[..., Any], name: str) -> Callable[[fx.GraphModule, list[Any]], Any]:
        def compile_half(gm: fx.GraphModule, inputs: list[Any]) -> Any:
            compiled = compiler(gm, inputs)
            if not callable(compiled):
                raise BackendError(f"{name} returned {type(compiled).__name__}, which can't be called")
            return compiled

        return compile_half

    forward = checked(fw_compiler, "fw_compiler")
    backward = forward if bw_compiler is None else checked(bw_compiler, "bw_compiler")

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if trace.needs_grad(gm, example_inputs):
            return with_views(run_joint(gm, example_inputs, partition, forward, backward), gm)
        aten = trace.trace_inference(gm, example_inputs, Config.from_env())
        return with_views(run_aten(aten, forward(aten.gm, list(example_inputs))), gm)

    return compile(fn, backend=backend)
