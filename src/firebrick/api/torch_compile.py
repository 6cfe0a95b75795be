"""The backend that `torch.compile(model, backend="firebrick")` finds through its entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from firebrick.api import accuracy
from firebrick.api.settings import Settings
from firebrick.fakes.node_values import plain_copy
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
    own = plain_copy(gm)  # the values of torch.compile's fake tensor mode stand for its guards
    own.meta["name"] = "graph"
    return accuracy.compile_graph(own, example_inputs, Settings.make(mode=mode, options=options).config)


def _is_concrete(tensor: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))
