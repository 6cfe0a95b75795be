"""The backend that `torch.compile(model, backend="firebrick")` finds through its entry point."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from firebrick import pipeline
from firebrick.config import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Mapping

__all__ = ["torch_compile_backend"]


def torch_compile_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Compile a graph that torch.compile captured. Graphs with symbolic sizes run on eager kernels in this version."""
    config = Config.from_env().with_mode(mode).with_options(options)
    return pipeline.compile_graph(_own_copy(gm), example_inputs, replace(config, fullgraph=False))


def _own_copy(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy without the metadata of torch.compile's fake tensor mode, whose values stand for its guards."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, copied))
    for node in graph.nodes:
        node.meta = {}
    own = torch.fx.GraphModule(gm, graph)
    own.meta["name"] = "graph"
    return own
