"""Cutting a graph before and behind calls that are not compiled with the rest: branches, loops, collectives."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx
from torch.nn import functional as F

from firebrick.errors import LoweringError
from firebrick.ir.graph.nested import Nested

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class Segment(NamedTuple):
    """Part of a graph: one of its own, from some nodes to others, or one call that stands apart with its items."""

    inputs: list[fx.Node]
    outputs: list[fx.Node]
    graph: fx.GraphModule | None
    apart: list[fx.Node]


_SPARSE: Mapping[Any, tuple[str, int]] = {
    F.embedding: ("sparse", 6),
    F.embedding_bag: ("sparse", 7),
    torch.embedding: ("sparse", 4),
    torch.embedding_bag: ("sparse", 5),
    torch.gather: ("sparse_grad", 3),
    "gather": ("sparse_grad", 3),
}
"""What can give a sparse gradient, which only torch's own functions make -> name and place of what asks for it."""


def _gives_sparse_gradient(node: fx.Node) -> bool:
    name, place = _SPARSE.get(node.target, ("", 0))
    if not name or not (node.args[place] if len(node.args) > place else node.kwargs.get(name, False)):
        return False
    val = node.meta.get("val")
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in (val if isinstance(val, tuple) else (val,)))


COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "_dtensor", "symm_mem")
"""Namespaces of ops that other processes wait for: they run in the program's order, also where nobody uses a result."""


def _is_collective(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in COLLECTIVES
    name = target._qualified_op_name if isinstance(target, torch._ops.OpOverloadPacket) else ""
    return name.partition("::")[0] in COLLECTIVES


def _stands_apart(node: fx.Node) -> bool:
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return _stands_apart(node.args[0])
    if isinstance(node.target, Nested):
        return node.target.splits or any(
            _is_collective(n.target) for b in node.target.bodies for n in b.graph.graph.nodes
        )
    return _is_collective(node.target) or _gives_sparse_gradient(node)


def is_cut(gm: fx.GraphModule) -> bool:
    """Whether a call in the graph stands apart."""
    return any(_stands_apart(node) for node in gm.graph.nodes if node.op in ("call_function", "call_method"))


def segments(gm: fx.GraphModule, starts: frozenset[fx.Node] = frozenset()) -> list[Segment]:
    """The parts of a graph in their order; one begins at each of `starts`.

    Raises:
        LoweringError: what is no tensor goes from one part to another.
    """
    groups: list[tuple[bool, list[fx.Node]]] = []
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        apart = node.op in ("call_function", "call_method") and _stands_apart(node)
        begins = node in starts or (apart and node.target is not operator.getitem)
        if not groups or groups[-1][0] is not apart or begins:
            groups.append((apart, []))
        groups[-1][1].append(node)
    return [_segment(gm, nodes, apart) for apart, nodes in groups]


def _segment(gm: fx.GraphModule, nodes: list[fx.Node], apart: bool) -> Segment:
    inside = set(nodes)
    used = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside)
    inputs = [n for n in used if n.op != "get_attr" or apart]
    outputs = [node for node in nodes if any(user not in inside for user in node.users)]
    if any(not isinstance(n.meta.get("val"), torch.Tensor) for n in (*inputs, *outputs)):
        raise LoweringError("what is no tensor goes past a branch or loop")
    if apart:
        return Segment(inputs, outputs, None, nodes)
    return Segment(inputs, outputs, part_of(gm, nodes, inputs, outputs), [])


def part_of(
    gm: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    """Some nodes as a graph of their own, of these inputs and outputs; what they use of constants comes along."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for n in inputs:
        copies[n] = graph.placeholder(n.name)
        copies[n].meta.update(n.meta)
    used = dict.fromkeys([*(n for node in nodes for n in node.all_input_nodes), *outputs])
    for n in (*(n for n in used if n.op == "get_attr"), *nodes):
        copies[n] = copies[n] if n in copies else graph.node_copy(n, copies.__getitem__)
    graph.output(tuple(copies[n] for n in outputs))
    module = fx.GraphModule(gm, graph)
    module.meta.update(gm.meta)
    return module


class Segments:
    """Runs a graph that was cut; `compiled` has what stands for the graph of each segment, None where it is a call."""

    def __init__(self, gm: fx.GraphModule, parts: list[Segment], compiled: list[Callable[..., Any] | None]) -> None:
        self.gm = gm
        nodes = list(gm.graph.nodes)
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        self.attributes = [node for node in nodes if node.op == "get_attr"]
        self.output: Any = nodes[-1].args[0]
        self.steps = list(zip(parts, compiled, strict=True))

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """The graph's results."""
        values: dict[fx.Node, Any] = dict(zip(self.placeholders, args, strict=True))
        values.update((node, getattr(self.gm, str(node.target))) for node in self.attributes)
        for part, run in self.steps:
            if run is not None:
                values.update(zip(part.outputs, run(*[values[node] for node in part.inputs]), strict=True))
                continue
            for node in part.apart:
                target: Any = node.target
                args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                run = target if node.op == "call_function" else getattr(args[0], target)
                values[node] = run(*args[run is not target :], **kwargs)
        return tuple(fx.map_arg(self.output, values.__getitem__))
