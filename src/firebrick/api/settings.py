"""What one `compile` or `optimize` asked for, resolved: configuration, backend and the hook's callback."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch._logging._internal
import torch.compiler.config
from torch import fx

from firebrick import backends
from firebrick.api import accuracy
from firebrick.capture import hook
from firebrick.capture.frame import Capture, FrameReport
from firebrick.config import IDLE, MODES, Config, unknown_variables
from firebrick.errors import BackendError, ConfigError, SizesRefused
from firebrick.extend import Pass, SubgraphCompiler, Target
from firebrick.ir.graph.calls import tensors_in
from firebrick.ir.index.sizes import has_symbols
from firebrick.report import recorder

_CALLER = 5
"""Frames from a warning up to whoever called `compile` or `optimize`."""


def check_flag(name: str, value: Any, choices: str = "True or False") -> None:
    """Refuse what is no bool: any text would be true.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {choices}, got {value!r}")


def _warn_of_idle(config: Config, mode: str | None) -> None:
    for name in (name for name in IDLE if getattr(config, name)):
        option = f"mode={mode!r}" if mode is not None and name in MODES[mode] else f"{name}=True"
        recorder.warn_once(f"idle {name}", f"firebrick: {option} has no effect: {IDLE[name]}", stacklevel=_CALLER)
    for sentence in unknown_variables():
        recorder.warn_once(sentence, f"firebrick: {sentence}", stacklevel=_CALLER)


def _torch_logs() -> set[str]:
    """What `TORCH_LOGS` or `torch._logging.set_logs` asked for: artifacts, and loggers that are to say what they do."""
    state = getattr(torch._logging._internal, "log_state", None)
    if state is None:
        return set()
    loggers = {name for name, level in state.get_log_level_pairs() if level in (logging.DEBUG, logging.INFO)}
    return loggers | state.artifact_names


def _as_torch_says(config: Config) -> Config:
    """With what the program told torch: its logs, and of `torch.compiler.config` the limit, sizes and caches."""
    options: dict[str, Any] = {}
    front_end = sys.modules.get("torch._dynamo.config")  # reading torch.compiler.config.recompile_limit would import it
    limit = getattr(front_end, "recompile_limit", None)
    if limit != Config().recompile_limit == config.recompile_limit and limit is not None:
        options["recompile_limit"] = limit
    if getattr(front_end, "automatic_dynamic_shapes", True) is False and config.dynamic is None:
        options["dynamic"] = False
    if torch.compiler.config.force_disable_caches:
        options["cache"] = False
    return config.with_logs(_torch_logs()).with_options(options)


@dataclass(frozen=True)
class Settings:
    """The arguments of a `compile`, kept so that copies and unpickled modules can be compiled the same way."""

    backend: str | Callable[..., Any] = backends.FIREBRICK
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: Mapping[str, Any] | None = None
    passes: tuple[Pass, ...] = ()
    name: str | None = None
    recompile_limit: int | None = None
    config: Config = field(default_factory=Config.from_env, compare=False)

    @classmethod
    def make(
        cls,
        backend: str | Callable[..., Any] | Target | SubgraphCompiler | None = None,
        *,
        mode: str | None = None,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        options: Mapping[str, Any] | None = None,
        passes: Sequence[Pass] = (),
        name: str | None = None,
        recompile_limit: int | None = None,
    ) -> Settings:
        """Check the arguments of `compile`, and warn once a process of what changes nothing.

        Raises:
            ConfigError: an unknown mode or option, or an argument of the wrong type.
            BackendError: an unknown backend.
        """
        backend = backends.FIREBRICK if backend is None else backend
        if isinstance(backend, (Target, SubgraphCompiler)):
            backend = backends.find_backend(backend)
        if not callable(backend) and not isinstance(backend, str):
            raise ConfigError(f"backend is a name or a function, got {type(backend).__name__}")
        if dynamic is not None:
            check_flag("dynamic", dynamic, "True, False or None")
        check_flag("fullgraph", fullgraph)
        config = _as_torch_says(Config.from_env()).with_mode(mode)
        if backend == backends.FIREBRICK:
            config = config.with_options(options)
        else:
            backends.find_backend(backend)
        arguments = {"fullgraph": fullgraph or None, "dynamic": dynamic, "recompile_limit": recompile_limit}
        config = config.with_options({k: v for k, v in arguments.items() if v is not None})
        _warn_of_idle(config, mode)
        return cls(backend, mode, fullgraph, dynamic, options, tuple(passes), name, recompile_limit, config)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "config"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        restored = Settings.make(**state)
        self.__dict__.update(restored.__dict__)

    def compiler(self) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
        """Return the function that compiles one captured graph."""
        if self.backend == backends.FIREBRICK:

            def firebrick(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
                if self.name is not None:
                    gm.meta["name"] = self.name
                return accuracy.compile_graph(gm, example_inputs, self.config, self.passes)

            firebrick.reads_nodes_only = True  # type: ignore[attr-defined]
            firebrick.takes_symbols = self.config.stages != "trace"  # type: ignore[attr-defined]
            return firebrick
        backend = backends.find_backend(self.backend)
        options: dict[str, Any] = {"options": dict(self.options)} if self.options else {}
        if self.mode and isinstance(self.backend, str):
            options["mode"] = self.mode

        declared = getattr(backend, "takes_symbols", None)

        def other(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            values = (n.meta.get("val") for n in gm.graph.nodes)
            unknown = declared is None and any(map(has_symbols, tensors_in(list(values))))
            try:
                compiled = backends.call_backend(backend, gm, example_inputs, **options)
            except BackendError as error:
                if unknown:
                    raise SizesRefused("the backend fails on a graph with symbols") from error
                raise
            if declared is None and getattr(compiled, "__self__", compiled) is not gm:
                other.takes_symbols = False  # type: ignore[attr-defined]  # it may be for the examples' sizes alone
                if unknown:
                    raise SizesRefused("the backend does not say that it takes symbols")
            return compiled

        other.takes_symbols = declared is not False  # type: ignore[attr-defined]
        other.checks_data = getattr(backend, "checks_data", False)  # type: ignore[attr-defined]
        return other

    def capturer(self, scope: object, on_frame: Callable[[FrameReport], None] | None = None) -> Capture:
        """Return the callback that captures frames for this compile; `scope` is the hook's."""
        return Capture(self.compiler(), self.config, on_frame=on_frame, scope=scope)

    def forced(self, backend: str | Callable[..., Any], function: Callable[..., Any]) -> hook.Wrapped:
        """Return the function as another backend compiles it, whatever these settings say of theirs."""
        scope = hook.Scope()
        settings = replace(self, backend=backend, mode=None, options=None)
        return hook.Wrapped(function, settings.capturer(scope), scope)
