"""Carries a change of memory layout through the graph: the values of what follows are computed anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from firebrick.errors import InternalError, LoweringError
from firebrick.fakes.mode import is_random
from firebrick.ir.graph.calls import tensors_in

aten = torch.ops.aten


def propagate_layouts(gm: fx.GraphModule, changed: Mapping[fx.Node, torch.Tensor]) -> None:
    """Recompute `meta["val"]` of what depends on `changed`: nodes whose strides are new -> their values before.

    A view that the new layout does not allow gets a contiguous copy of its argument. What the graph returns, and what
    ops see that go by memory, keeps the strides that it had.

    Raises:
        LoweringError: an op can't take the new layout.
    """
    moved: dict[fx.Node, Any] = {n: v for n, v in changed.items() if n.meta["val"].stride() != v.stride()}
    for node in list(gm.graph.nodes):
        if node.op == "output":
            _give_before(gm, node, moved)
        elif node.op == "call_function" and node not in moved and any(n in moved for n in node.all_input_nodes):
            _recompute(gm, node, moved)


def check_layouts(gm: fx.GraphModule) -> None:
    """Verify that every call's value lies as the op lays it out, which lowering and views of it rely on.

    Raises:
        InternalError: one doesn't; names the node.
    """
    for node in gm.graph.nodes:
        if node.op != "call_function" or not node.all_input_nodes or node.target is aten.clone.default:
            continue  # a clone's value says how it is to lie
        try:
            value = _run(node)
        except (LoweringError, NotImplementedError, RuntimeError, TypeError, ValueError):
            continue  # the ops of a device of one's own need not run on fake values
        if laid_out(value) != laid_out(node.meta["val"]):
            raise InternalError(f"{node.name} lies as {laid_out(value)}, its value says {laid_out(node.meta['val'])}")


def _give_before(gm: fx.GraphModule, node: fx.Node, moved: dict[fx.Node, Any]) -> None:
    """Have a node read what it did."""
    for source in [n for n in node.all_input_nodes if isinstance(moved.get(n), torch.Tensor)]:
        node.replace_input_with(source, _as_before(gm, source, moved[source], node))


def _recompute(gm: fx.GraphModule, node: fx.Node, moved: dict[fx.Node, Any]) -> None:
    before = node.meta["val"]
    if _sees_memory(node):
        _give_before(gm, node, moved)
        return
    try:
        after = _run(node)
    except (RuntimeError, ValueError):
        for source in node.all_input_nodes:
            if source in moved:
                copy = _as_before(gm, source, None, node, memory_format=torch.contiguous_format)
                copy.meta["val"] = _run(copy)
                node.replace_input_with(source, copy)
        after = _run(node)
    if laid_out(after) != laid_out(before):
        node.meta["val"] = after
        moved[node] = before


def _run(node: fx.Node) -> Any:
    """The fake value of a call."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode = next((v.fake_mode for v in tensors_in((args, kwargs)) if hasattr(v, "fake_mode")), None)
    if mode is None:
        raise LoweringError(f"{node.name} has no fake value among its arguments")
    with mode, torch.no_grad():
        return node.target(*args, **kwargs)  # type: ignore[operator]


def _sees_memory(node: fx.Node) -> bool:
    """Whether what a call returns depends on how its arguments lie: it counts in memory, or draws numbers in the order
    of memory, or nobody knows."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    drawn = torch.Tag.nondeterministic_seeded in target.tags and is_random(target, node.args, node.kwargs)
    return drawn or target in _OF_MEMORY or target.namespace not in _KNOWN


_OF_MEMORY = frozenset({aten.as_strided.default, aten.as_strided_scatter.default, aten.view.dtype})
_KNOWN = frozenset({"aten", "prims", "firebrick", "mkl", "mkldnn"})


def _as_before(gm: fx.GraphModule, node: fx.Node, value: Any, user: fx.Node, **how: Any) -> fx.Node:
    """A copy of the node's value in the layout that it had."""
    with gm.graph.inserting_before(user):
        copy = gm.graph.call_function(aten.clone.default, (node,), how)
    copy.meta = {"val": value, "stack": node.meta.get("stack", ())}
    return copy


def laid_out(value: Any) -> Any:
    """Strides and offset of every tensor of a value; axes of one element don't count, and of no elements none does."""
    return [
        (tuple(s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1 and 0 not in t.shape), t.storage_offset())
        for t in tensors_in(value)
    ]
