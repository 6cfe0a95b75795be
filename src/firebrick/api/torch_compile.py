"""The backend that `torch.compile(model, backend="firebrick")` finds through its entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from firebrick.api import accuracy
from firebrick.api.settings import Settings
from firebrick.report import recorder


def torch_compile_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """Compile a graph that torch.compile captured. Graphs with symbolic sizes run on eager kernels in this version."""
    if not all(isinstance(t, torch.Tensor) and _is_concrete(t) for t in example_inputs):
        recorder.note_once("symbolic", "firebrick: graphs with symbolic sizes run on eager kernels in this version")
        return gm.forward
    config = Settings.make(mode=mode, options=options).config
    return accuracy.compile_graph(_own_copy(gm), example_inputs, config)


def _is_concrete(tensor: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


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
