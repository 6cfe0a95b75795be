"""Operators of collectives inside a graph, `firebrick::all_reduce` and others: each ends when its result is there.

PyTorch's own start the work and leave their input in use until `wait_tensor`. A graph frees and reuses memory by the
order of its calls, so there each collective is one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Shape = Callable[..., Sequence[Any]]


SHAPES: dict[str, tuple[str, Shape]] = {
    "all_reduce": ("Tensor x, str op, str group", lambda x, op, group: x.shape),
    "broadcast": ("Tensor x, int source, str group", lambda x, source, group: x.shape),
    "all_gather_into_tensor": (
        "Tensor x, int ranks, str group",
        lambda x, ranks, group: (x.shape[0] * ranks, *x.shape[1:]) if x.dim() else (ranks,),
    ),
    "reduce_scatter_tensor": (
        "Tensor x, str op, int ranks, str group",
        lambda x, op, ranks, group: (x.shape[0] // ranks, *x.shape[1:]),
    ),
    "all_to_all_single": (
        "Tensor x, SymInt[] received, SymInt[] sent, str group",
        lambda x, received, sent, group: (sum(received), *x.shape[1:]),
    ),
}
"""Name of an operator of PyTorch -> its arguments and the shape of its result, which is contiguous."""


def _define(name: str, arguments: str, shape: Shape) -> Any:
    def kernel(x: torch.Tensor, *args: Any) -> torch.Tensor:
        ops: Any = torch.ops._c10d_functional
        return ops.wait_tensor(getattr(ops, name)(x.contiguous(), *args))

    def meta(x: torch.Tensor, *args: Any) -> torch.Tensor:
        return x.new_empty(tuple(shape(x, *args)))

    _library.define(f"{name}({arguments}) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    _library.impl(name, meta, "Meta")
    return getattr(torch.ops.firebrick, name).default


_library = torch.library.Library("firebrick", "FRAGMENT")
COLLECTIVE_OPS = {name: _define(name, *row) for name, row in SHAPES.items()}
"""Name of an operator of PyTorch -> ours, which waits."""
