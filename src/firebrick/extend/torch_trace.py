"""Torch-level graphs of plain functions, for patterns and replacements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx


def trace_torch(function: Callable[..., Any], inputs: int) -> fx.GraphModule:
    """The graph of torch calls that `function` makes on `inputs` tensors.

    Like `fx.symbolic_trace`, but for any callable, also one that takes `*args`.
    """
    tracer = fx.Tracer()
    tracer.root = torch.nn.Module()
    tracer.tensor_attrs = {}
    tracer.graph = fx.Graph(tracer_cls=fx.Tracer)
    proxies = [tracer.create_proxy("placeholder", f"in_{i}", (), {}) for i in range(inputs)]
    result = function(*proxies)
    tracer.create_node("output", "output", (tracer.create_arg(result),), {})
    return fx.GraphModule(tracer.root, tracer.graph)
