"""Firebrick: a whole compiler for PyTorch."""

from __future__ import annotations

import sys

import torch

from firebrick import errors
from firebrick.version import VERSION as __version__


def _check_platform(python: tuple[int, int], torch_version: str) -> None:
    """Refuse what the native parts were not written for.

    Raises:
        PlatformError: this Python or this torch is not supported.
    """
    if not (3, 11) <= python <= (3, 13):
        raise errors.PlatformError(
            f"Firebrick supports Python 3.11 to 3.13, this is {python[0]}.{python[1]}", fix="use one of these"
        )
    parts = torch_version.split(".")
    if not (parts[0] == "2" and parts[1].isdigit() and 11 <= int(parts[1]) <= 14):
        raise errors.PlatformError(
            f"Firebrick supports torch 2.11 to 2.14, this is {torch_version}", fix='pip install "torch>=2.11,<2.15"'
        )


_check_platform(sys.version_info[:2], torch.__version__)

from firebrick import extend, passes, torchscript  # noqa: E402  (the platform is checked first)
from firebrick.api import reset, stats  # noqa: E402
from firebrick.api.bundle import load, save  # noqa: E402
from firebrick.api.compiled_backward import compiled_backward  # noqa: E402
from firebrick.api.compiling import aot, compile, disable, optimize, run  # noqa: E402
from firebrick.api.explaining import Explanation, explain  # noqa: E402
from firebrick.api.exporting import export  # noqa: E402
from firebrick.api.switches import set_stance  # noqa: E402
from firebrick.backends import list_backends, register_backend  # noqa: E402
from firebrick.capture.marks import (  # noqa: E402
    allow_in_graph,
    assume_constant_result,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
)
from firebrick.pipeline import graphs_compiled  # noqa: E402

__all__ = [
    "Explanation", "__version__", "allow_in_graph", "aot", "assume_constant_result", "compile", "compiled_backward",
    "disable", "errors", "explain", "export", "extend", "graph_break", "graphs_compiled", "is_compiling",
    "list_backends", "load", "mark_dynamic", "mark_static", "optimize", "passes", "register_backend", "reset", "run",
    "save", "set_stance", "stats", "torchscript",
]  # fmt: skip
