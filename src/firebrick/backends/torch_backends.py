"""PyTorch's registered backends (inductor, cudagraphs, onnxrt, tvm...) behind our capture.

The only file of the package that imports `torch._dynamo`; it is imported when such a backend is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import fx

from firebrick.fakes.node_values import plain_copy

_OURS = frozenset({"eager", "aot_eager", "firebrick"})


def names() -> frozenset[str]:
    """Return the backends that this PyTorch has and we don't; also those that a package adds, now or later."""
    return frozenset(torch._dynamo.list_backends(exclude_tags=("debug",))) - _OURS


def adapt(name: str) -> Callable[..., Any]:
    """Return a backend that hands graphs to PyTorch's backend `name`."""
    lookup: Any = torch._dynamo.lookup_backend
    compiler = lookup(name)

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        # PyTorch's backends make fake tensors in a mode of their own.
        return compiler(plain_copy(gm), list(example_inputs), **options)

    backend.__name__ = name
    return backend
