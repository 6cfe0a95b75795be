"""What one `compile` or `optimize` asked for, resolved: configuration, backend and the hook's callback."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from firebrick import backends, pipeline
from firebrick.capture.frame import Capture, FrameReport
from firebrick.config import Config
from firebrick.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import fx

    from firebrick.extend import Pass

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """The arguments of a `compile`, kept so that copies and unpickled modules can be compiled the same way."""

    backend: str | Callable[..., Any] = backends.FIREBRICK
    mode: str | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    options: Mapping[str, Any] | None = None
    passes: tuple[Pass, ...] = ()
    config: Config = field(default_factory=Config.from_env, compare=False)

    @classmethod
    def make(
        cls,
        backend: str | Callable[..., Any],
        mode: str | None,
        fullgraph: bool,
        dynamic: bool | None,
        options: Mapping[str, Any] | None,
        passes: Sequence[Pass],
    ) -> Settings:
        """Check the arguments of `compile`.

        Raises:
            ConfigError: an unknown mode or option.
            BackendError: an unknown backend.
        """
        if not callable(backend) and not isinstance(backend, str):
            raise ConfigError(f"backend is a name or a function, got {type(backend).__name__}")
        config = Config.from_env().with_mode(mode)
        if backend == backends.FIREBRICK:
            config = config.with_options(options)
        else:
            backends.find_backend(backend)
        config = replace(config, fullgraph=bool(fullgraph), dynamic=dynamic if dynamic is not None else config.dynamic)
        return cls(backend, mode, bool(fullgraph), dynamic, options, tuple(passes), config)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "config"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        made = Settings.make(**state)
        self.__dict__.update(made.__dict__)

    def compiler(self) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
        """Return the function that compiles one captured graph."""
        if self.backend == backends.FIREBRICK:

            def firebrick(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
                return pipeline.compile_graph(gm, example_inputs, self.config, self.passes)

            firebrick.reads_nodes_only = True  # type: ignore[attr-defined]
            return firebrick
        found = backends.find_backend(self.backend)
        options: dict[str, Any] = {}
        if self.options:
            options["options"] = dict(self.options)
        if self.mode and isinstance(self.backend, str):
            options["mode"] = self.mode

        def other(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            return backends.call_backend(found, gm, example_inputs, **options)

        return other

    def capturer(self, scope: object, on_frame: Callable[[FrameReport], None] | None = None) -> Capture:
        """Return the callback that captures frames for this compile; `scope` is the hook's."""
        return Capture(self.compiler(), self.config, on_frame=on_frame, scope=scope)
