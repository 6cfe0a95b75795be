"""Rules of ops that are library kernels: matmuls write where they are told, and everything without a rule is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from firebrick.loops.dtypes import BY_TORCH
from firebrick.lowering.context import Lowering, shape_of, strides_of
from firebrick.lowering.tensors import contiguous_strides

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["RULES", "call"]

aten = torch.ops.aten

_OUT_VARIANTS: Mapping[Any, str] = {
    aten.mm.default: "aten::mm.out",
    aten.addmm.default: "aten::addmm.out",
    aten.bmm.default: "aten::bmm.out",
    aten.baddbmm.default: "aten::baddbmm.out",
}
"""Op -> its variant that writes a given tensor, so that the memory plan can place the result."""


def call(lw: Lowering, *args: Any, **kwargs: Any) -> Any:
    """Call the node's own op in the library."""
    target: Any = lw.node.target
    schema = target._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return lw.extern(name, args, kwargs)


def _into(lw: Lowering, *args: Any, **kwargs: Any) -> Any:
    val = lw.node.meta["val"]
    if not BY_TORCH[val.dtype].loops or strides_of(val) != contiguous_strides(shape_of(val)):
        return call(lw, *args, **kwargs)
    return lw.extern(_OUT_VARIANTS[lw.node.target], args, kwargs, into=True)


RULES: dict[Any, Callable[..., Any]] = dict.fromkeys(_OUT_VARIANTS, _into)
"""OpOverload -> rule."""
