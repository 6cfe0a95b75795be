"""What a graph writes: by which functional op it is computed, and whether someone can tell a view from a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from firebrick.ir.graph.calls import is_mutating
from firebrick.ir.index.sizes import expressions

_SPECIAL_NAMES = {
    "normal_": "normal_functional",
    "rrelu_with_noise": "rrelu_with_noise_functional",
    "rrelu_with_noise_": "rrelu_with_noise_functional",
}
"""Ops that write arguments -> their functional form, where it has another name than the usual one."""

_COPIES_AT_NEED = frozenset({"reshape", "reshape_as", "flatten", "ravel", "contiguous"})
"""Functions that give a view where the argument's strides allow it."""


def tells_views(graph: fx.Graph) -> bool:
    """Whether it matters which tensors of a graph are views: one is written, or a result may be one of what the caller
    has, an argument or another result."""
    if any(map(is_mutating, graph.nodes)):
        return True
    results = graph.output_node().all_input_nodes
    return any(_may_show(node, {*results} - {node}) for node in results)


def _may_show(node: fx.Node, others: set[fx.Node]) -> bool:
    at_need = False
    while node.op in ("call_function", "call_method") and node.all_input_nodes:
        source, name = node.all_input_nodes[0], getattr(node.target, "__name__", node.target)
        if not _shares(node, source):
            if name not in _COPIES_AT_NEED:
                return False
            at_need = True
        node = source
        if at_need and (node.op == "placeholder" or node in others):
            return True
    return False


def _shares(one: fx.Node, two: fx.Node) -> bool:
    places = {
        val.untyped_storage()._cdata if isinstance(val, torch.Tensor) and val.layout is torch.strided else id(node)
        for node in (one, two)
        for val in (node.meta.get("val"),)
    }
    return len(places) == 1


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
    signature = [(a.name, str(a.type)) for a in op._schema.arguments if not (is_out and _is_written(a))]
    for overload in packet.overloads():
        candidate: OpOverload = getattr(packet, overload)
        if candidate._schema.is_mutable:
            continue
        if [(a.name, str(a.type)) for a in candidate._schema.arguments] == signature:
            return candidate
    return None


def checked_outs(
    mode: FakeTensorMode, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[torch.Tensor]
) -> Any:
    """The `out=` arguments of a call with symbols: kernels in C++ would look whether they fit, by numbers; raises
    RuntimeError: they are not like the results for all sizes."""
    functional, names = functional_of(op), {name for _, name in written_arguments(op)}
    plain = {name: value for name, value in kwargs.items() if name not in names}
    results = None if functional is None else mode.__torch_dispatch__(functional, (), args, plain)
    pairs = list(zip(outs, results if isinstance(results, tuple) else [results], strict=False))
    if any(result is None or expressions(out.shape) != expressions(result.shape) for out, result in pairs):
        raise RuntimeError(f"{op} gets a tensor for its result that has other sizes")
    if any(not torch.can_cast(result.dtype, out.dtype) for out, result in pairs if result is not None):
        raise RuntimeError(f"{op} gets a tensor for its result that has another dtype")
    return outs[0] if len(outs) == 1 else tuple(outs)
