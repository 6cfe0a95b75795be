"""`aot`: compile functions over traced ATen graphs, in the manner of functorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firebrick import autodiff
from firebrick.api.compiling import compile
from firebrick.backends.aten import run_aten
from firebrick.config import Config
from firebrick.errors import BackendError
from firebrick.report import recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

__all__ = ["aot"]


def aot(
    fn: Any,
    fw_compiler: Callable[[fx.GraphModule, list[Any]], Callable[..., Any]],
    bw_compiler: Callable[[fx.GraphModule, list[Any]], Callable[..., Any]] | None = None,
    partition: Callable[..., Any] | None = None,
) -> Any:
    """Return `fn`, with its graphs traced to functional ATen and handed to `fw_compiler(gm, example_inputs)`.

    Args:
        bw_compiler: compiles backward graphs; None takes `fw_compiler`. Graphs that need gradients run on eager
            kernels in this version, so it is not called yet.
        partition: how a joint graph is divided, likewise.
    """

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if autodiff.needs_grad(gm, example_inputs):
            recorder.note_once("training", "firebrick: graphs that need gradients run on eager kernels in this version")
            return gm.forward
        aten = autodiff.trace_inference(gm, example_inputs, Config.from_env())
        compiled = fw_compiler(aten.gm, list(example_inputs))
        if not callable(compiled):
            raise BackendError(f"fw_compiler returned {type(compiled).__name__}, which can't be called")
        return run_aten(aten, compiled)

    return compile(fn, backend=backend)
