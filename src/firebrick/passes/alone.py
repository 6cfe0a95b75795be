"""A few nodes of a graph as a graph of their own, for a rewrite of which there are several forms to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx._lazy_graph_module import _LazyGraphModule

from firebrick.extend.pass_runner import copy_graph
from firebrick.ir.graph.aten import AtenGraph

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default

Form = Callable[[AtenGraph], AtenGraph]
"""A rewrite of a graph, in place."""
Choose = Callable[[AtenGraph, Mapping[str, Form], Mapping[str, int]], str]
"""Takes a graph, whose first call has the forms, these by name, the one that the cost model prefers first, and by name
how often loops go over the results; says which is the fastest."""


def alone(nodes: Sequence[fx.Node], is_constant: Callable[[fx.Node], bool]) -> AtenGraph:
    """Copy nodes, of which each but the last is read by the others alone.

    What they read becomes arguments, and constants where it depends on constants alone; each has the layout that it
    has in the whole graph. Names tell nothing of that graph: equal parts have equal texts.
    """
    graph, copies, constants = fx.Graph(), {}, {}
    inside = set(nodes)
    outside = dict.fromkeys(arg for node in nodes for arg in node.all_input_nodes if arg not in inside)
    root = nn.Module()
    names = {node: f"{'c' if is_constant(node) else 'x'}{i}" for i, node in enumerate(outside)}
    for node, name in sorted(names.items(), key=lambda item: item[1][0], reverse=True):  # placeholders come first
        if name.startswith("c"):
            copy = graph.create_node("get_attr", name)
            constants[name] = node.meta["val"]
            setattr(root, name, node.meta["val"])
        else:
            copy = graph.placeholder(name)
        copy.meta = {"val": node.meta["val"], "stack": ()}
        copies[node] = copy
    for i, node in enumerate(nodes):
        copy = graph.node_copy(node, copies.__getitem__)
        copy.name = f"n{i}"
        copy.meta = {"val": node.meta["val"], "stack": ()}
        copies[node] = copy
    graph.output((copies[nodes[-1]],))
    gm = _LazyGraphModule(root, graph)
    return AtenGraph(gm, dict(constants), outputs=[None], frozen=frozenset(constants), name="part")


def chain(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    """Nodes from the first to the last, each of which the next one alone reads."""
    return [first] if first is last else [first, *chain(next(iter(first.users)), last)]


def subject_of(node: Any) -> tuple[str, tuple[Any, ...]] | None:
    """What is measured of a call: its op and arguments, as targets are asked for choices of it."""
    if node.target is aten.convolution.default:
        x, weight, _, stride, padding, dilation, _, _, groups = node.args
        return "aten::convolution", (
            x.meta["val"], weight.meta["val"], stride, padding, dilation, groups, node.meta["val"]
        )  # fmt: skip
    if node.target is ATTENTION:
        parts = (*node.args[:3], node.kwargs.get("attn_mask"))
        return "firebrick::attention", (*(arg and arg.meta["val"] for arg in parts), node.args[4:5] == (True,))
    op = {aten.mm.default: "aten::mm", aten.addmm.default: "aten::mm", aten.bmm.default: "aten::bmm"}.get(node.target)
    return None if op is None else (op, tuple(arg.meta["val"] for arg in node.args[-2:]))


def text_of(part: AtenGraph) -> str:
    """What is equal for equal parts."""
    lines = []
    for node in part.gm.graph.nodes:
        val = node.meta.get("val")
        layout = f": {val.dtype} {tuple(val.shape)} {val.stride()}" if isinstance(val, torch.Tensor) else ""
        lines.append(f"{node.op} {node.name} {node.target} {node.args} {node.kwargs}{layout}")
    return "\n".join(lines)


def short_text(part: AtenGraph) -> str:
    """For people: what is computed, and the shapes that go in."""
    nodes = part.gm.graph.nodes
    ops = (n.target for n in nodes if isinstance(n.target, torch._ops.OpOverload))
    calls = [str(op).removeprefix("aten.").partition(".")[0] for op in ops]
    shapes = ["x".join(map(str, n.meta["val"].shape)) for n in nodes if n.op in ("placeholder", "get_attr")]
    return f"{' '.join(calls)} of {', '.join(shapes)}"


def copied(part: AtenGraph) -> AtenGraph:
    """A copy to rewrite."""
    gm = _LazyGraphModule(part.gm, copy_graph(part.gm.graph))
    return type(part)(gm, dict(part.constants), outputs=list(part.outputs), frozen=part.frozen, name=part.name)
