"""Which functional op computes what an in-place or out= op writes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch._ops import OpOverload

aten = torch.ops.aten

_SPECIAL_NAMES = {
    "normal_": "normal_functional",
    "rrelu_with_noise": "rrelu_with_noise_functional",
    "rrelu_with_noise_": "rrelu_with_noise_functional",
}
"""Ops that write arguments -> their functional form, where it has another name than the usual one."""


def _is_written(argument: torch._C.Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


@cache
def written_arguments(op: OpOverload) -> tuple[tuple[int, str], ...]:
    """Return (position, name) of the arguments that `op` writes."""
    return tuple((i, a.name) for i, a in enumerate(op._schema.arguments) if _is_written(a))


@cache
def functional_of(op: OpOverload) -> OpOverload | None:
    """Return the op that returns what `op` writes, None if there is none.

    `add_.Tensor` and `add.out` both give `add.Tensor`.
    """
    name = op._opname
    is_out = all(a.kwarg_only for a in op._schema.arguments if _is_written(a))
    if not is_out:
        name = _SPECIAL_NAMES.get(name, name.removesuffix("_") if not name.startswith("__i") else "__" + name[3:])
    packet = getattr(getattr(torch.ops, op.namespace), name, None)
    if packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments if not (is_out and _is_written(a))]
    for overload in packet.overloads():
        candidate: OpOverload = getattr(packet, overload)
        if candidate._schema.is_mutable:
            continue
        if [(a.name, str(a.type)) for a in candidate._schema.arguments] == wanted:
            return candidate
    return None
