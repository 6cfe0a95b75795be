"""Whole-graph backends made of subgraph compilers: what the engine lacks runs on eager kernels.

`engine_backend` is also what turns a `SubgraphCompiler` of one's own into a backend function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from firebrick import trace
from firebrick.backends.aten import run_aten
from firebrick.backends.loops import LoopCompiler, compile_placed
from firebrick.config import Config
from firebrick.extend import SubgraphCompiler, Target, partition
from firebrick.report import recorder


def engine_backend(
    *engines: SubgraphCompiler | Target, report: Callable[[str], None] | None = None
) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend that divides each graph among `engines`; a target takes what lowers to loops that it can write.

    Graphs that need gradients run as they were captured: engines compute no gradients.

    Args:
        report: is given the partition's report as text.
    """
    compilers = [LoopCompiler(engine) if isinstance(engine, Target) else engine for engine in engines]

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        del options
        config = Config.from_env()
        if trace.needs_grad(gm, example_inputs):
            recorder.warn_once("engines and gradients", "subgraph compilers run at inference; this graph runs eagerly")
            return gm.forward
        if all(c.level == "torch" for c in compilers):
            result = partition(gm, compilers, config=config)
            run: Callable[..., Any] = gm
        else:
            placing = [c for c in compilers if isinstance(c, LoopCompiler)]
            aten = trace.trace_inference(gm, example_inputs, config, {c.name: c.target for c in placing})
            result = partition(aten.gm, compilers, config=config, frozen=aten.frozen, as_op=bool(placing))
            run = compile_placed(aten, placing, config) if placing else run_aten(aten, aten.gm)
        recorder.event("partition", text=str(result), percent=result.percent, groups=len(result.claims))
        if report is not None:
            report(str(result))
        return run

    backend.__name__ = "_".join(c.name for c in compilers)
    return backend
