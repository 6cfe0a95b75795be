"""`save` and `load`: a compiled module with its machine code in one file.

The file is a zip archive: the module as `torch.save` writes it, how it was compiled, and the compiled graphs that it
used so far. Loading a module runs its pickle, so load only files that you trust, as with `torch.load`.
"""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from firebrick import runtime
from firebrick.api.compiling import compile
from firebrick.api.module import original_of, settings_of
from firebrick.artifact import decode, encode, read_index
from firebrick.config import Config
from firebrick.errors import CacheError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load", "save"]

_FORMAT = 1


def save(compiled: Any, path: str | Path) -> None:
    """Write a compiled module and the graphs that were compiled for it to `path`.

    Raises:
        ConfigError: `compiled` is not a compiled module, or its backend is a function.
    """
    settings = settings_of(compiled) if isinstance(compiled, nn.Module) else None
    if settings is None:
        raise ConfigError(
            "save takes a compiled module, as firebrick.compile returns it", fix="compile a module, not a function"
        )
    if not isinstance(settings.backend, str) or settings.passes:
        raise ConfigError("a module compiled by a function or with passes can't be saved", fix="use a named backend")
    about = {
        "format": _FORMAT,
        "torch": torch.__version__,
        "settings": {
            "backend": settings.backend,
            "mode": settings.mode,
            "fullgraph": settings.fullgraph,
            "dynamic": settings.dynamic,
            "options": dict(settings.options or {}),
        },
    }
    module = io.BytesIO()
    torch.save(original_of(compiled), module)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("about.json", json.dumps(about))
        archive.writestr("module.pt", module.getvalue())
        cache = runtime.DiskCache(settings.config)
        for digest, key in settings.keys.items():
            artifact = cache.load(key)
            if artifact is not None:
                archive.writestr(f"graphs/{digest}", encode(artifact, {"parts": dict(key.parts)}))


def load(path: str | Path) -> nn.Module:
    """Read what `save` wrote; the module's graphs are in the cache, so that its first call compiles nothing.

    Raises:
        CacheError: the file was not written by `save`, or by another version of it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            about = json.loads(archive.read("about.json"))
            data = archive.read("module.pt")
            graphs = {n.removeprefix("graphs/"): archive.read(n) for n in archive.namelist() if n.startswith("graphs/")}
    except (OSError, KeyError, zipfile.BadZipFile, ValueError) as error:
        raise CacheError(f"{path} is not a file that firebrick.save wrote: {error}") from error
    if about.get("format") != _FORMAT:
        raise CacheError(f"{path} has format {about.get('format')}, this version reads {_FORMAT}")
    cache = runtime.DiskCache(Config.from_env())
    for digest, blob in graphs.items():
        cache.store(runtime.Key(digest, read_index(blob)["parts"]), decode(blob))
    module = torch.load(io.BytesIO(data), weights_only=False)
    settings = about["settings"]
    compiled: nn.Module = compile(module, **{**settings, "options": settings["options"] or None})
    return compiled
