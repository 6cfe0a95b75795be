"""Graphs as short, stable text."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from firebrick.ir.graph.aten import AtenGraph
from firebrick.ir.loops.dtypes import BY_TORCH
from firebrick.trace.joint import JointGraph


def show(aten: AtenGraph) -> str:
    """Print an ATen graph, its write-backs and its aliases."""
    lines = [f"aten {aten.name}", show_nodes(aten.gm.graph)]
    if aten.mutated:
        lines.append(f"  writes {', '.join(aten.mutated)}")
    for i, alias in enumerate(aten.outputs):
        if alias is not None:
            layout = f"[{_row(alias.shape)} : {_row(alias.strides)}] + {alias.offset}"
            lines.append(f"  output {i} is {alias.base} {alias.index} {layout}")
    return "\n".join(lines)


def show_joint(joint: JointGraph) -> str:
    """Print a joint graph: what it returns is the forward's results, then one gradient for each tensor named."""
    lines = [f"joint {joint.name}", show_nodes(joint.gm.graph), f"  gradients of {', '.join(joint.wrt)}"]
    if joint.mutated:
        lines.append(f"  writes {', '.join(joint.mutated)}")
    return "\n".join(lines)


def _row(items: tuple[Any, ...]) -> str:
    return ", ".join(str(i) for i in items)


def show_nodes(graph: fx.Graph) -> str:
    """Print the nodes of a graph, one a line."""
    lines = []
    for node in graph.nodes:
        meta = _show_val(node.meta.get("val"))
        if node.op == "placeholder":
            lines.append(f"  in    {node.name}{meta}")
        elif node.op == "get_attr":
            lines.append(f"  const {node.target}{meta}")
        elif node.op == "output":
            lines.append(f"  return {_show_arg(node.args[0])}")
        else:
            args = [_show_arg(a) for a in node.args]
            args += [f"{k}={_show_arg(v)}" for k, v in node.kwargs.items()]
            prefix = "." if node.op == "call_method" else ""
            lines.append(f"  {node.name}{meta} = {prefix}{_show_target(node.target)}({', '.join(args)})")
    return "\n".join(lines)


def _show_target(target: Any) -> str:
    if isinstance(target, str):
        return target
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removeprefix("aten.").removesuffix(".default")
    return getattr(target, "__name__", type(target).__name__)


def _show_arg(arg: Any) -> str:
    if isinstance(arg, fx.Node):
        return arg.name
    if isinstance(arg, tuple):
        return f"({', '.join(_show_arg(a) for a in arg)})"
    if isinstance(arg, list):
        return f"[{', '.join(_show_arg(a) for a in arg)}]"
    return str(arg) if isinstance(arg, (torch.dtype, torch.device)) else repr(arg)


def _show_val(val: Any) -> str:
    if isinstance(val, torch.Tensor):
        dtype = BY_TORCH.get(val.dtype)
        name = dtype.name if dtype is not None else str(val.dtype)
        return f": {name}[{_row(tuple(val.shape))}]"
    return ""
