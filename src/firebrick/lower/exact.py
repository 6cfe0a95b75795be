"""What `numerics="eager"` leaves to loops: what has one right result. The rest is called and has the library's bits.

Eager PyTorch's own bits of other functions depend on the library behind them (MKL for exp, sqrt and the like), on
whether an element is in a full vector or in the rest behind it, and on where threads divide the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from firebrick.ir.index.expr import ZERO
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Const, Load, Op, Value
from firebrick.ir.loops.values import values_of
from firebrick.lower.tensors import TensorValue

aten = torch.ops.aten

_ROUNDED = frozenset(("add", "sub", "mul", "div"))
"""Functions of floats that round, as IEEE 754 says: after a second one, a fused multiply-add could differ."""

_FREE_NAMES = (
    "neg abs sign copysign floor ceil round trunc isnan isinf signbit lt le gt ge eq ne where to and or xor not"
)
_FREE = frozenset(_FREE_NAMES.split())
"""Functions of floats that round nothing, or a conversion, which has one right result."""

_NAMES = (
    "sum.default sum.dim_IntList prod.default prod.dim_int mean.default mean.dim var.correction "
    "std.correction var_mean.correction linalg_vector_norm.default _softmax.default "
    "_log_softmax.default native_layer_norm.default _fused_rms_norm.default native_group_norm.default "
    "avg_pool2d.default avg_pool3d.default "
    "_adaptive_avg_pool2d.default _adaptive_avg_pool3d.default arange.default arange.start "
    "arange.start_step scatter_add.default scatter_reduce.two index_put.default index_add.default"
)
CALLED: frozenset[Any] = frozenset(
    getattr(getattr(aten, packet), overload)
    for packet, _, overload in (name.partition(".") for name in _NAMES.split())
    if hasattr(aten, packet)
)
"""Ops with a rule of their own whose result depends on the order of additions."""


def are_exact(args: Sequence[Any]) -> bool:
    """Whether arguments reach eager's formula as they are: whether it rounds them to a half type first varies."""
    dtypes = {arg.dtype for arg in args if isinstance(arg, TensorValue)} - {"b8"}
    halves = dtypes & {"bf16", "f16"}
    if not halves:
        return True
    numbers = [arg for arg in args if isinstance(arg, (int, float))]
    kind = DTYPES[min(halves)].torch
    return len(dtypes) == 1 and all(math.isnan(n) or float(torch.tensor(n, dtype=kind)) == n for n in numbers)


def is_exact(fn: Callable[..., Value], values: Sequence[Value | str | None]) -> bool:
    """Whether a formula has one right result; arguments are given as values, or as the dtype of a tensor's element."""
    probes = [Load(v, f"probe{i}", ZERO) if isinstance(v, str) else v for i, v in enumerate(values)]
    rounded = 0
    for value in values_of(fn(*probes)):
        if not isinstance(value, Op) or not any(DTYPES[v.dtype].is_float for v in (value, *value.args)):
            continue
        if value.name in _ROUNDED:
            rounded += 1
        elif value.name in ("min", "max"):
            # Of 0.0 and -0.0 eager takes either. A bound comes first here: equal to it, the other argument is taken.
            if not isinstance(value.args[0], Const):
                return False
        elif value.name not in _FREE:
            return False
    return rounded <= 1
