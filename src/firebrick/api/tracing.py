"""`aot`: compile functions over traced ATen graphs, in the manner of functorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import fx

from firebrick import trace
from firebrick.api.compiling import compile
from firebrick.backends.aten import run_aten, run_joint, with_views
from firebrick.config import Config
from firebrick.errors import BackendError


def aot(
    fn: Any,
    fw_compiler: Callable[[fx.GraphModule, list[Any]], Callable[..., Any]],
    bw_compiler: Callable[[fx.GraphModule, list[Any]], Callable[..., Any]] | None = None,
    partition: Callable[[trace.JointGraph], Iterable[fx.Node]] | None = None,
) -> Any:
    """Return `fn`, with its graphs traced to functional ATen and handed to `fw_compiler(gm, example_inputs)`.

    Args:
        bw_compiler: compiles backward graphs, when they are first needed; None takes `fw_compiler`. Its example inputs
            are fake tensors.
        partition: which nodes of a joint graph the forward saves for the backward, a function of a `JointGraph`; what
            else the backward needs it computes again. None: the fewest bytes without computing anything costly twice.
    """

    def checked(compiler: Callable[..., Any], name: str) -> Callable[[fx.GraphModule, list[Any]], Any]:
        def compile_half(gm: fx.GraphModule, inputs: list[Any]) -> Any:
            compiled = compiler(gm, inputs)
            if not callable(compiled):
                raise BackendError(f"{name} returned {type(compiled).__name__}, which can't be called")
            return compiled

        return compile_half

    forward = checked(fw_compiler, "fw_compiler")
    backward = forward if bw_compiler is None else checked(bw_compiler, "bw_compiler")

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        if trace.needs_grad(gm, example_inputs):
            return with_views(run_joint(gm, example_inputs, partition, forward, backward), gm)
        aten = trace.trace_inference(gm, example_inputs, Config.from_env())
        return with_views(run_aten(aten, forward(aten.gm, list(example_inputs))), gm)

    return compile(fn, backend=backend)
