"""Ops on lists of tensors, taken apart into one op a tensor, which is what eager does on the CPU.

_foreach_lerp_.Scalar([a, b], [x, y], 0.1)    ->    lerp_.Scalar(a, x, 0.1); lerp_.Scalar(b, y, 0.1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload

_SAME = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min clone copy cos cosh div erf erfc exp expm1 floor "
    "frac lerp lgamma log log10 log1p log2 mul neg pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh "
    "trunc zero"
)
_NAMES: Mapping[str, str] = {
    **{name: name for name in _SAME.split()}, "maximum": "clamp_min", "minimum": "clamp_max",
    "norm": "linalg_vector_norm",
}  # fmt: skip
"""What follows `_foreach_` -> the op of one tensor."""

_OVERLOADS: Mapping[str, tuple[str, ...]] = {
    "default": ("default",), "Scalar": ("Tensor_Scalar", "Scalar", "default"),
    "ScalarList": ("Tensor_Scalar", "Scalar", "default"), "ScalarAndTensor": ("Scalar",),
    "List": ("Tensor_Tensor", "Tensor", "default"), "Tensor": ("Tensor",),
}  # fmt: skip
"""Overload on lists -> overloads on tensors, the first that there is."""


@cache
def op_of(func: OpOverload) -> OpOverload | None:
    """The op of one tensor that an op on lists does to each; None where that is not all that it does."""
    name = func._opname
    if func.namespace != "aten" or not name.startswith("_foreach_"):
        return None
    inplace = name.endswith("_")
    single = _NAMES.get(name.removeprefix("_foreach_").rstrip("_"))
    packet = getattr(torch.ops.aten, single + "_" * inplace, None) if single else None
    for overload in _OVERLOADS.get(func._overloadname, ()):
        if packet is not None and overload in packet.overloads():
            return getattr(packet, overload)
    return None


def calls_of(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[OpOverload, tuple[Any, ...], dict[str, Any]]] | None:
    """The calls on single tensors that a call on lists stands for; None where it has to stay whole."""
    op = op_of(func)
    if op is None:
        return None
    declared = func._schema.arguments
    values = [*args, *(kwargs.get(a.name, a.default_value) for a in declared[len(args) :])]
    listed = [str(a.real_type).startswith("List[") for a in declared]
    counts = {len(value) for value, many in zip(values, listed, strict=True) if many}
    if len(counts) != 1 or 0 in counts:
        return None  # eager's own error
    if op._opname == "linalg_vector_norm":
        tensors, order, dtype = values
        return [(op, (t, order, None, False), {"dtype": dtype}) for t in tensors]
    calls = []
    for k in range(counts.pop()):
        mine = [value[k] if many else value for value, many in zip(values, listed, strict=True)]
        pairs = list(zip(op._schema.arguments, mine, strict=False))
        positional = tuple([value for argument, value in pairs if not argument.kwarg_only])
        calls.append((op, positional, {argument.name: value for argument, value in pairs if argument.kwarg_only}))
    return calls
