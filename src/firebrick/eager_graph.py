"""Graphs that run on eager kernels."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from firebrick.ir.graph.calls import is_mutating

_KEEP_STATISTICS = frozenset({"batch_norm", "instance_norm"})
_MOST_UNDONE = 1 << 16
"""Bytes of a tensor that is put back, as of `native/host.c`."""


def run_eagerly(gm: fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
    """Return what runs a graph as it is.

    As a host program does, it puts small tensors back that were written before a later call raises: who goes on in
    plain Python writes again.
    """
    _LazyGraphModule.force_recompile(gm)
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    writes = [n for n in gm.graph.nodes if is_mutating(n) or getattr(n.target, "__name__", "") in _KEEP_STATISTICS]
    written = dict.fromkeys(n for node in writes for n in node.all_input_nodes if n.op in ("placeholder", "get_attr"))
    if not written:
        return gm.forward

    def run(*args: Any) -> tuple[Any, ...]:
        values = dict(zip(placeholders, args, strict=True))
        tensors = [values[n] if n in values else operator.attrgetter(str(n.target))(gm) for n in written]
        small = [t for t in tensors if isinstance(t, torch.Tensor) and not t.requires_grad and t.nbytes <= _MOST_UNDONE]
        before = [t.detach().clone() for t in small]
        try:
            return gm.forward(*args)  # type: ignore[no-any-return]
        except Exception:
            with torch.no_grad():
                for tensor, content in zip(small, before, strict=True):
                    tensor.copy_(content)
            raise

    return run
