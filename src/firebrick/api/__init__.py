"""The public functions; `firebrick` itself re-exports them."""

from firebrick.api.compiling import torch_compile_backend as torch_compile_backend
from firebrick.capture import hook
from firebrick.pipeline import graphs_compiled
from firebrick.report import recorder


def reset() -> None:
    """Forget everything that was captured and compiled in this process; the disk cache stays."""
    hook.reset()


def stats() -> dict[str, object]:
    """Return what this process did: counts, reasons of graph breaks and recompiles, seconds by stage."""
    return {**recorder.stats(), "graphs_compiled": graphs_compiled()}
