"""Settings: one frozen object, and the only reader of the environment.

Every setting is a field of `Config`; `FIREBRICK_<NAME>` sets its default and
`firebrick.compile(options={...})` overrides it for one compile. State is passed, never ambient:
stages receive the `Config` of the compile that they serve.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from firebrick.errors import ConfigError

T = TypeVar("T")
_PREFIX = "FIREBRICK_"

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {}, "reduce-overhead": {"graphs": True}, "max-autotune": {"autotune": True, "graphs": True},
    "max-autotune-no-cudagraphs": {"autotune": True, "graphs": False},
}  # fmt: skip
"""Mode name -> the settings that it changes (torch.compile's modes)."""


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "firebrick"


LEVELS = ("capture", "guards", "recompiles", "graph", "joint", "aten", "loops", "schedule", "code")
"""What `debug` and `dump` show, in the order of the pipeline."""

TORCH_LOGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("graph_breaks", "torch._dynamo"), ("capture",)),
    **dict.fromkeys(("guards", "verbose_guards"), ("guards",)),
    **dict.fromkeys(("recompiles", "recompiles_verbose"), ("recompiles",)),
    **dict.fromkeys(("graph", "graph_code", "graph_code_verbose", "pre_grad_graphs"), ("graph",)),
    **dict.fromkeys(("aot_joint_graph",), ("joint",)),
    **dict.fromkeys(("aot_graphs", "post_grad_graphs"), ("aten",)),
    **dict.fromkeys(("ir_pre_fusion", "loop_ordering"), ("loops",)),
    **dict.fromkeys(("ir_post_fusion", "fusion", "schedule", "torch._inductor"), ("schedule",)),
    **dict.fromkeys(("output_code", "kernel_code"), ("code",)),
}
"""What `TORCH_LOGS` and `torch._logging.set_logs` name, artifacts and loggers, -> levels that show the same here."""

CHECKS = ("ir", "accuracy", "guards")
"""What `check` looks at while a program runs: see the setting."""

IDLE: Mapping[str, str] = {"fallback_random": "random numbers are eager's in any case"}
"""Settings that programs for torch.compile ask for and that change nothing here, with the reason."""


def _setting(default: T, text: str) -> T:
    """A field of `Config`, with what it does for `firebrick options`."""
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one compile. Immutable; derive another with `with_options`."""

    # Debugging and strictness
    strict: bool = _setting(False, "raise where a failing internal step would fall back to eager")
    check: frozenset[str] = _setting(
        frozenset(),
        "ir (or 1): legality of the IR, and that it parses back; accuracy: each compiled graph beside eager; "
        "guards: capture every call anew, and name guards that would have let another through",
    )
    stages: str = _setting("all", "how far graphs go, for bisecting: all, trace and capture (on eager kernels), none")
    skip_frames: frozenset[str] = _setting(frozenset(), "functions (file:line or name) that run as plain Python")
    debug: frozenset[str] = _setting(frozenset(), f"levels to print: {', '.join(LEVELS)}")
    dump: Path | None = _setting(None, "folder that receives every level's text")  # noqa: RUF009  (it makes a field)
    # Capture
    recompile_limit: int = _setting(8, "compiles of one function or module before others run as plain Python")
    dynamic: bool | None = _setting(
        None, "sizes as symbols, so that one compile serves many: True all, False none, None those that changed"
    )
    fullgraph: bool = _setting(False, "raise Unsupported at a graph break")
    background: bool = _setting(False, "run on eager kernels while a thread compiles, so that no call waits")
    # Compiler
    numerics: str = _setting("default", "eager: eager's bits for arithmetic, functions, casts and reductions")
    fallback_random: bool = _setting(False, "eager's random numbers; so in any case")
    deterministic: bool = _setting(False, "the same kernels in every process: none is chosen by its time")
    prepack: bool = _setting(True, "keep constant weights of matmuls and convolutions in the kernel's layout")
    fold: bool = _setting(True, "evaluate what depends on constants alone ahead of time")
    fuse: bool = _setting(True, "off: one kernel a loop nest, for bisecting")
    memory_budget: float = _setting(
        1.0, "what training saves: 1 nothing that is cheap to compute again, 0 only inputs, between them by bytes"
    )
    offload: int = _setting(0, "bytes from which tensors saved for the backward wait on the CPU; True 1 MiB, 0 none")
    compiled_backward: bool = _setting(False, "one backward over all graphs for losses inside of the function")
    measure: bool | None = _setting(
        None, "choose among kernels for linear layers by timing them here; None: so except for files, by save"
    )
    autotune: bool = _setting(False, "time every form of a matmul, with what follows; code of their own for hot sizes")
    graphs: bool | None = _setting(None, "True, False: record and replay CUDA graphs always, never; else if faster")
    disable_passes: frozenset[str] = _setting(frozenset(), "names of passes and rewrite rules that are switched off")
    verify_passes: bool = _setting(False, "run every rewritten graph against the original on the example inputs")
    # Target
    simd: str = _setting("auto", "vector instructions: auto, scalar, avx2, avx512, neon")
    threads: int = _setting(0, "OpenMP threads that kernels are sized for; 0: torch.get_num_threads() of the compile")
    compiler: str = _setting("", "C++ compiler; empty: $CXX, then g++, clang++, c++")
    # Runtime
    cache: bool = _setting(True, "read and write the disk cache")
    cache_dir: Path = field(default_factory=_default_cache_dir, metadata={"text": "folder of the disk cache"})
    cache_size_mb: int = _setting(4096, "MiB beyond which the least recently used entries are removed")
    keep_memory: bool = _setting(False, "tell glibc, for the whole process, to keep freed memory of two calls")
    build_workers: int = _setting(0, "compiler processes at once; 0: one a core, at most 8")
    build_timeout: int = _setting(120, "seconds that one compiler process may take")
    remote_cache: str = _setting("", "redis:// address of a shared cache; empty: none")
    remote_cache_key: str = _setting("", "secret that signs and checks entries of the shared cache")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Defaults overridden by `FIREBRICK_*` variables.

        Raises:
            ConfigError: a value can't be read as its setting's type.
        """
        env = os.environ if environ is None else environ
        setting_of = {variable_of(f.name): f.name for f in fields(cls)}
        return cls()._changed({setting_of[key]: text for key, text in env.items() if key in setting_of}, variable_of)

    def with_logs(self, names: Iterable[str]) -> Config:
        """Show as well what `TORCH_LOGS` asks for."""
        levels = self.debug.union(*(TORCH_LOGS.get(name, ()) for name in names))
        return self if levels == self.debug else replace(self, debug=levels)

    def with_mode(self, mode: str | None) -> Config:
        """Apply one of `MODES`.

        Raises:
            ConfigError: unknown mode.
        """
        if mode is None:
            return self
        if mode not in MODES:
            raise ConfigError(f"unknown mode {mode!r}", fix=f"use one of {', '.join(MODES)}")
        return replace(self, **MODES[mode])

    def with_options(self, options: Mapping[str, Any] | None) -> Config:
        """Return a copy with `options` applied; text values are converted to the setting's type.

        Raises:
            ConfigError: unknown setting or a value of the wrong type.
        """
        if not options:
            return self
        return self._changed(options, lambda name: f"option {name}")

    def _changed(self, values: Mapping[str, Any], shown: Callable[[str], str]) -> Config:
        """A copy with other values; errors call a setting as `shown` does."""
        current = {f.name: getattr(self, f.name) for f in fields(self)}
        changes = {}
        for name, value in values.items():
            if name not in current:
                raise ConfigError(f"unknown option {name!r}", fix=f"options are {', '.join(sorted(current))}")
            changes[name] = _convert(name, value, current[name], shown(name))
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the list of settings; values as they are written in the environment."""

    name: str
    value: str
    default: str
    text: str


def settings(config: Config) -> list[Setting]:
    """Every setting with its value in a configuration."""
    plain = Config()
    return [
        Setting(f.name, _written(f.name, config), _written(f.name, plain), f.metadata["text"]) for f in fields(Config)
    ]


def _written(name: str, config: Config) -> str:
    value = getattr(config, name)
    if name.startswith("remote_cache") and value:
        return "(set)"  # a secret, and an address that may hold one
    if isinstance(value, frozenset):
        return ",".join(sorted(value))
    return "" if value is None else str(value)


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return f"{_PREFIX}{name.upper()}"


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A sentence on each `FIREBRICK_*` variable that no setting has."""
    names = {f.name.upper() for f in fields(Config)}
    env = os.environ if environ is None else environ
    sentences = []
    for name in sorted({n.removeprefix(_PREFIX) for n in env if n.startswith(_PREFIX)} - names):
        near = difflib.get_close_matches(name, names, 1)
        fix = f"did you mean {_PREFIX}{near[0]}?" if near else "`firebrick options` lists them"
        sentences.append(f"the environment variable {_PREFIX}{name} is no setting of Firebrick: {fix}")
    return sentences


_CHOICES = {
    "numerics": ("default", "eager"),
    "simd": ("auto", "scalar", "avx2", "avx512", "avx512_vnni", "avx512_bf16", "avx512_amx", "neon"),
    "stages": ("all", "trace", "capture", "none"),
}
_NAMES = {"debug": LEVELS, "check": CHECKS}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def _convert(name: str, value: Any, current: Any, shown: str) -> Any:
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigError(f"{shown} can't be {value!r}", fix=f"use one of {', '.join(_CHOICES[name])}")
    if name in ("dynamic", "graphs", "measure"):
        return value if value is None else _to_bool(value, shown)
    if name in ("cache_dir", "dump"):
        return Path(value) if value else None
    if isinstance(current, bool):
        return _to_bool(value, shown)
    if isinstance(current, float):
        try:
            share = float(value)
        except (TypeError, ValueError):
            share = -1.0
        if isinstance(value, bool) or not 0 <= share <= 1:
            raise ConfigError(f"{shown} needs a number from 0 to 1, got {value!r}")
        return share
    if isinstance(current, int):
        if name == "offload" and str(value).lower() in ("true", "false"):
            return 2**20 if _to_bool(value, shown) else 0
        try:
            number = int(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{shown} needs a whole number, got {value!r}") from None
        if number < 0:
            raise ConfigError(f"{shown} can't be less than 0, got {value!r}")
        return number
    if isinstance(current, frozenset):
        return _names(name, value, shown)
    if not isinstance(value, str):
        raise ConfigError(f"{shown} needs text, got {value!r}")
    return value


def _names(name: str, value: Any, shown: str) -> frozenset[str]:
    if name == "check" and str(value).lower() in (*_TRUE, *_FALSE):
        return frozenset({"ir"}) if _to_bool(value, shown) else frozenset()
    try:
        names = frozenset(n.strip() for n in (value.split(",") if isinstance(value, str) else value)) - {""}
    except (TypeError, AttributeError):
        raise ConfigError(f"{shown} needs names, separated by commas or in a list, got {value!r}") from None
    unknown = sorted(names - set(_NAMES[name])) if name in _NAMES else []
    if unknown:
        raise ConfigError(f"{shown} has no level {unknown[0]!r}", fix=f"levels are {', '.join(_NAMES[name])}")
    return names


def _to_bool(value: Any, shown: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ConfigError(f"{shown} needs true or false, got {value!r}")
