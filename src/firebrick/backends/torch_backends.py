"""PyTorch's registered backends (inductor, cudagraphs, onnxrt, tvm...) behind our capture.

The only file of the package that imports `torch._dynamo`; it is imported when such a backend is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo
from torch import fx

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_OURS = frozenset({"eager", "aot_eager", "firebrick"})


def names() -> frozenset[str]:
    """Return the backends that this PyTorch has and we don't; also those that a package adds, now or later."""
    return frozenset(torch._dynamo.list_backends(exclude_tags=("debug",))) - _OURS


def adapt(name: str) -> Callable[..., Any]:
    """Return a backend that hands graphs to PyTorch's backend `name`."""
    lookup: Any = torch._dynamo.lookup_backend
    compiler = lookup(name)

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        compiled: Callable[..., Any] = compiler(_plain(gm), list(example_inputs), **options)
        return compiled

    backend.__name__ = name
    return backend


def _plain(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph without our metadata: PyTorch's backends make fake tensors in a mode of their own."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        node.meta = {}
    return fx.GraphModule(gm, graph)
