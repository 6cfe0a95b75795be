"""Settings: one frozen object, and the only reader of the environment.

Every setting is a field of `Config`; `FIREBRICK_<NAME>` sets its default and
`firebrick.compile(options={...})` overrides it for one compile. State is passed, never ambient:
stages receive the `Config` of the compile that they serve.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firebrick.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MODES", "Config"]

MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"graphs": True},
    "max-autotune": {"autotune": True, "graphs": True},
    "max-autotune-no-cudagraphs": {"autotune": True},
}
"""Mode name -> the settings that it changes (torch.compile's modes)."""


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "firebrick"


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of one compile. Immutable; derive another with `with_options`."""

    # Debugging and strictness
    strict: bool = False  # raise where a failing internal step would fall back to eager
    check: bool = False  # verify parse(show(x)) == x and IR legality between passes
    debug: frozenset[str] = frozenset()  # levels to print: capture graph aten loops schedule code guards
    dump: Path | None = None  # folder that receives every level's text
    # Capture
    recompile_limit: int = 8  # entries of one code object and module before capture gives up on it
    dynamic: bool | None = None  # None: sizes become symbolic when they are seen to change
    fullgraph: bool = False  # raise Unsupported at a graph break
    # Compiler
    numerics: str = "default"  # "eager": eager's bits for pointwise chains, casts and random ops
    fallback_random: bool = False  # random ops called in eager's order, with eager's results
    deterministic: bool = False  # fixed order of every reduction, whatever the thread count
    prepack: bool = True  # keep constant weights of matmuls and convolutions in the library's layout
    fold: bool = True  # evaluate what depends on constants alone ahead of time
    fuse: bool = True  # off: one kernel a loop nest, for bisecting
    autotune: bool = False  # choose among kernels by measurement
    graphs: bool = False  # record and replay CUDA graphs
    disable_passes: frozenset[str] = frozenset()  # names of rewrite rules that are switched off
    verify_passes: bool = False  # run every rewritten graph against the original on the example inputs
    # Target
    simd: str = "auto"  # auto, scalar, avx2, avx512, neon
    threads: int = 0  # OpenMP threads that kernels are sized for; 0: torch.get_num_threads()
    compiler: str = ""  # C++ compiler; empty: $CXX, then g++, clang++, c++
    # Runtime
    cache: bool = True  # read and write the disk cache
    cache_dir: Path = field(default_factory=_default_cache_dir)
    cache_size_mb: int = 4096  # least recently used entries go beyond this size
    build_workers: int = 0  # compiler processes at once; 0: one a core, at most 8
    build_timeout: int = 120  # seconds that one compiler process may take
    remote_cache: str = ""  # redis:// address of a shared tier; empty: none
    remote_cache_key: str = ""  # secret that signs and checks entries of the shared tier

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Config:
        """Defaults overridden by `FIREBRICK_*` variables.

        Raises:
            ConfigError: a value can't be read as its setting's type.
        """
        env = os.environ if environ is None else environ
        found = {f.name: env[key] for f in fields(cls) if (key := f"FIREBRICK_{f.name.upper()}") in env}
        return cls().with_options(found)

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
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        changes = {}
        for name, value in options.items():
            if name not in known:
                raise ConfigError(f"unknown option {name!r}", fix=f"options are {', '.join(sorted(known))}")
            changes[name] = _convert(name, value, known[name])
        return replace(self, **changes)


_CHOICES = {
    "numerics": ("default", "eager"),
    "simd": ("auto", "scalar", "avx2", "avx512", "neon"),
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def _convert(name: str, value: Any, current: Any) -> Any:
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ConfigError(f"option {name} can't be {value!r}", fix=f"use one of {', '.join(_CHOICES[name])}")
    if name == "dynamic":
        return value if value is None else _to_bool(name, value)
    if name in ("cache_dir", "dump"):
        return Path(value) if value else None
    if isinstance(current, bool):
        return _to_bool(name, value)
    if isinstance(current, int):
        try:
            return int(value)
        except (TypeError, ValueError):
            raise ConfigError(f"option {name} needs a whole number, got {value!r}") from None
    if isinstance(current, frozenset):
        return frozenset(value.split(",") if isinstance(value, str) else value) - {""}
    if not isinstance(value, str):
        raise ConfigError(f"option {name} needs text, got {value!r}")
    return value


def _to_bool(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ConfigError(f"option {name} needs true or false, got {value!r}")
