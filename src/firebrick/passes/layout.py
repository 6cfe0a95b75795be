"""Carries a change of memory layout through the graph: the values of what follows are computed anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from firebrick.errors import LoweringError
from firebrick.extend.metas import tensors_in

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["propagate_layouts"]

aten = torch.ops.aten


def propagate_layouts(gm: fx.GraphModule, changed: Mapping[fx.Node, torch.Tensor]) -> None:
    """Recompute `meta["val"]` of what depends on `changed`: nodes whose strides are new -> their values before.

    A view that the new layout does not allow gets a contiguous copy of its argument. What the graph returns keeps
    the strides that it had, for the caller may rely on them.

    Raises:
        LoweringError: an op can't take the new layout.
    """
    moved: dict[fx.Node, Any] = dict(changed)
    for node in list(gm.graph.nodes):
        if node.op == "output":
            _restore(gm, node, moved)
        elif node.op == "call_function" and node not in moved and any(n in moved for n in node.all_input_nodes):
            _recompute(gm, node, moved)


def _recompute(gm: fx.GraphModule, node: fx.Node, moved: dict[fx.Node, Any]) -> None:
    before = node.meta["val"]
    try:
        after = _run(node)
    except (RuntimeError, ValueError):
        for source in node.all_input_nodes:
            if source in moved:
                node.replace_input_with(source, _contiguous(gm, source, node))
        after = _run(node)
    if _layout(after) != _layout(before):
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


def _restore(gm: fx.GraphModule, output: fx.Node, moved: dict[fx.Node, Any]) -> None:
    for node in output.all_input_nodes:
        if node not in moved or not isinstance(moved[node], torch.Tensor):
            continue
        with gm.graph.inserting_before(output):
            copy = gm.graph.call_function(aten.clone.default, (node,))
        copy.meta = {"val": moved[node], "stack": node.meta.get("stack", ())}
        output.replace_input_with(node, copy)


def _contiguous(gm: fx.GraphModule, node: fx.Node, before: fx.Node) -> fx.Node:
    with gm.graph.inserting_before(before):
        copy = gm.graph.call_function(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    copy.meta = {"val": None, "stack": node.meta.get("stack", ())}
    copy.meta["val"] = _run(copy)
    return copy


def _layout(value: Any) -> Any:
    """Strides and offset of every tensor of a value; axes of one element don't count."""
    return [
        (tuple(s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1), t.storage_offset())
        for t in tensors_in(value)
    ]
