"""The public functions; `firebrick` itself re-exports them."""

from firebrick.api.bundle import load, save
from firebrick.api.compiled_backward import compiled_backward
from firebrick.api.compiling import compile, disable, optimize, run
from firebrick.api.explaining import Explanation, explain
from firebrick.api.exporting import export
from firebrick.api.switches import set_stance
from firebrick.api.torch_compile import torch_compile_backend
from firebrick.api.tracing import aot
from firebrick.backends import list_backends, register_backend
from firebrick.capture import hook
from firebrick.capture.marks import (
    allow_in_graph,
    assume_constant_result,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
)
from firebrick.pipeline import graphs_compiled
from firebrick.report import recorder

__all__ = [
    "Explanation",
    "allow_in_graph",
    "aot",
    "assume_constant_result",
    "compile",
    "compiled_backward",
    "disable",
    "explain",
    "export",
    "graph_break",
    "graphs_compiled",
    "is_compiling",
    "list_backends",
    "load",
    "mark_dynamic",
    "mark_static",
    "optimize",
    "register_backend",
    "reset",
    "run",
    "save",
    "set_stance",
    "stats",
    "torch_compile_backend",
]


def reset() -> None:
    """Forget everything that was captured and compiled in this process; the disk cache stays."""
    hook.reset()


def stats() -> dict[str, object]:
    """Return what this process did: counts, reasons of graph breaks and recompiles, seconds by stage."""
    return {**recorder.stats(), "graphs_compiled": graphs_compiled()}
