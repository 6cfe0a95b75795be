"""The backend that traces graphs to functional ATen and runs that on eager kernels: a test of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firebrick import autodiff
from firebrick.backends.aten import run_aten
from firebrick.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

__all__ = ["aot_eager"]


def aot_eager(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Run the traced ATen graph; graphs that need gradients run as they were captured."""
    if autodiff.needs_grad(gm, example_inputs):
        return gm.forward
    return run_aten(autodiff.trace_inference(gm, example_inputs, Config()))
