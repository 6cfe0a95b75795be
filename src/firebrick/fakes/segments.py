"""Cutting a graph before and behind calls that are not compiled with the rest: branches, loops, collectives, and what
gives results whose sizes its data decide: behind it they are sizes of inputs, as others are."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.nn import functional as F

from firebrick.errors import LoweringError
from firebrick.ir.graph.nested import Held, Nested
from firebrick.ir.index.expr import Expr, Var
from firebrick.ir.index.sizes import Fact, Sizes, SizesDisagree, expressions, sizes_in, symbol_axes


class Segment(NamedTuple):
    """Part of a graph: one of its own, from some nodes to others, or one call that stands apart with its items."""

    inputs: list[fx.Node]
    outputs: list[fx.Node]
    graph: fx.GraphModule | None
    apart: list[fx.Node]


_SPARSE: Mapping[Any, tuple[str, int]] = {
    F.embedding: ("sparse", 6), F.embedding_bag: ("sparse", 7), torch.embedding: ("sparse", 4),
    torch.embedding_bag: ("sparse", 5), torch.gather: ("sparse_grad", 3), "gather": ("sparse_grad", 3),
}  # fmt: skip
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


def stands_apart(node: fx.Node) -> bool:
    """Whether a call is not compiled with those around it, as one of sparse tensors, which have no strides."""
    if node.meta.get("data_sized") or isinstance(node.target, Held):
        return True
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return isinstance(node.args[0].meta.get("val"), (tuple, list, dict)) and stands_apart(node.args[0])
    if isinstance(node.target, Nested):
        return node.target.splits or any(
            _is_collective(n.target) for b in node.target.bodies for n in b.graph.graph.nodes
        )
    if node.target is operator.setitem and _has_mask(node.args[1]):
        return any(_is_of_data(used) for used in node.all_input_nodes)
    layouts = {getattr(n.meta.get("val"), "layout", None) for n in (node, *node.all_input_nodes)}
    return (
        not layouts <= {None, torch.strided, torch.jagged}
        or _is_collective(node.target)
        or _gives_sparse_gradient(node)
    )


def _has_mask(key: Any) -> bool:
    vals = [k.meta.get("val") for k in (key if isinstance(key, tuple) else (key,)) if isinstance(k, fx.Node)]
    return any(isinstance(val, torch.Tensor) and val.dtype in (torch.bool, torch.uint8) for val in vals)


def _is_of_data(node: fx.Node) -> bool:
    shape = getattr(node.meta.get("val"), "shape", ())
    sizes = sizes_in(shape)
    return sizes is not None and any(map(sizes.of_data, expressions(shape)))


def is_cut(gm: fx.GraphModule) -> bool:
    """Whether a call in the graph stands apart."""
    return any(stands_apart(node) for node in gm.graph.nodes if node.op in ("call_function", "call_method"))


def segments(gm: fx.GraphModule, starts: frozenset[fx.Node] = frozenset()) -> list[Segment]:
    """The parts of a graph in their order; one begins at each of `starts`; raises LoweringError: what is no tensor goes
    from one part to another."""
    groups: list[tuple[bool, list[fx.Node]]] = []
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        apart = node.op in ("call_function", "call_method") and stands_apart(node)
        begins = node in starts or (apart and (node.target is not operator.getitem or "data_sized" in node.meta))
        if not groups or groups[-1][0] is not apart or begins:
            groups.append((apart, []))
        groups[-1][1].append(node)
    parts = [(apart, _with_numbers(nodes)) for apart, nodes in groups]
    used = {n for _, nodes in parts for n in _from_outside(nodes)} | {*gm.graph.output_node().all_input_nodes}
    segments, sources = list[Segment](), _sources(n for n in gm.graph.nodes if n.op == "placeholder")
    for apart, nodes in parts:
        segments.append(_segment(gm, nodes, apart, used, sources))
        sources = {**_sources(nodes if apart else ()), **sources}
    return segments


def _with_numbers(nodes: list[fx.Node]) -> list[fx.Node]:
    """Nodes behind those that compute the numbers which they use: numbers do not go from one part to another."""
    own = dict.fromkeys(nodes)
    numbers: dict[fx.Node, None] = {}

    def reach(node: fx.Node) -> None:
        for used in node.all_input_nodes:
            if used not in own and used not in numbers and _is_number(used):
                reach(used)
                numbers[used] = None

    for node in nodes:
        reach(node)
    return [*numbers, *nodes]


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.SymInt, int, torch.SymFloat))


def _from_outside(nodes: list[fx.Node]) -> dict[fx.Node, None]:
    inside = set(nodes)
    return dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside)


def _sources(nodes: Iterable[fx.Node]) -> dict[str, fx.Node]:
    """Symbols -> nodes with a size that tells them."""
    return {name: n for n in nodes for _, name, _ in symbol_axes(getattr(n.meta.get("val"), "shape", ()))}


def _names(nodes: Iterable[fx.Node]) -> set[str]:
    """The symbols in sizes and numbers."""
    shapes = [getattr(node.meta.get("val"), "shape", [node.meta.get("val")]) for node in nodes]
    return {v.name for shape in shapes for n in expressions(shape) if isinstance(n, Expr) for v in n.vars()}


def _segment(
    gm: fx.GraphModule, nodes: list[fx.Node], apart: bool, used: set[fx.Node], sources: Mapping[str, fx.Node]
) -> Segment:
    """A part; what has a size of which its inputs have no more than `min(n, 5)` is an input for that size."""
    inputs = [n for n in _from_outside(nodes) if n.op != "get_attr" or apart]
    if not apart:
        unknown = _names([*inputs, *nodes]) & sources.keys() - _sources(inputs).keys()
        inputs += dict.fromkeys(sources[name] for name in sorted(unknown))
    outputs = [node for node in nodes if node in used and not _is_number(node)]
    if any(not isinstance(n.meta.get("val"), torch.Tensor) for n in (*inputs, *outputs)):
        raise LoweringError("what is no tensor goes past a branch or loop")
    return Segment(inputs, outputs, None if apart else part_of(gm, nodes, inputs, outputs), nodes if apart else [])


def part_of(
    gm: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    """Some nodes as a graph of their own, of these inputs and outputs; what they use of constants comes along."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for n in inputs:  # one may be there twice
        copies[n] = graph.placeholder(f"{n.name}_{len(graph.nodes)}" if n in copies else n.name)
        copies[n].meta.update(n.meta)
    used = dict.fromkeys([*(n for node in nodes for n in node.all_input_nodes), *outputs])
    for n in (*(n for n in used if n.op == "get_attr"), *nodes):
        copies[n] = copies[n] if n in copies else graph.node_copy(n, copies.__getitem__)
    graph.output(tuple(copies[n] for n in outputs))
    module = fx.GraphModule(gm, graph)
    module.meta.update(gm.meta)
    return module


def of_data(gm: fx.GraphModule) -> bool:
    """Whether data decide sizes of a graph's tensors."""
    return any(map(_is_of_data, gm.graph.nodes))


def _nonempty(part: Segment, sizes: Sizes, symbols: set[str]) -> list[Expr]:
    """What was taken to be 1 or more of sizes in a segment; its symbols become `symbols`."""
    names = _names(() if part.graph is None else part.graph.graph.nodes)
    symbols |= names
    mentioned = [e for e in sizes.nonempty if any(v.name in names for v in e.vars())]
    return [e for e in mentioned if all(v.name in symbols or v not in sizes.data for v in e.vars())]


class _Watch:
    """What each call looks at: the values of symbols, and whether what was taken for true of them is so."""

    def __init__(self, gm: fx.GraphModule, parts: list[Segment], sizes: Sizes) -> None:
        self.sizes = sizes
        self.facts: list[list[Fact]] = []
        self.places: list[list[tuple[fx.Node, int, str, int]]] = []
        self.layouts: list[list[tuple[fx.Node, tuple[Expr | int, ...]]]] = []
        facts, bound = sizes.of_calls(), set[str]()
        self.first = self._new([n for n in gm.graph.nodes if n.op == "placeholder"], bound)
        for part in parts:
            tensors = [n for n in part.apart if isinstance(n.meta.get("val"), torch.Tensor)]
            self.places.append(self._new(tensors, bound))
            self.layouts.append([(n, expressions(n.meta["val"].stride())) for n in tensors if n.meta.get("data_sized")])
            self.facts.append([f for f in facts if all(v.name in bound for v in f.difference.vars())])
            facts = [f for f in facts if f not in self.facts[-1]]
        if facts:
            raise LoweringError(f"no call can look whether {facts[0].difference} {facts[0].sign} 0")

    @staticmethod
    def _new(nodes: list[fx.Node], bound: set[str]) -> list[tuple[fx.Node, int, str, int]]:
        """The sizes that are symbols which none was before."""
        rows = [(node, *row) for node in nodes for row in symbol_axes(node.meta["val"].shape)]
        new = {row[2]: row for row in reversed(rows) if row[2] not in bound}
        bound.update(new)
        return [*new.values()]

    def begin(self, values: Mapping[fx.Node, Any]) -> dict[str, int]:
        """The symbols of the inputs."""
        return {name: values[node].shape[d] - more for node, d, name, more in self.first}

    def see(self, step: int, values: Mapping[fx.Node, Any], numbers: dict[str, int]) -> None:
        """Take what a call has made; raises SizesDisagree: something is not as it was taken to be."""
        for node, d, name, more in self.places[step]:
            numbers[name] = values[node].shape[d] - more
            equal = self.sizes.settled(self.sizes.symbols[name])
            if isinstance(equal, Var):  # found out later, and looked at where that one is seen
                numbers.setdefault(equal.name, numbers[name])
        for fact in self.facts[step]:
            try:
                fact.check(numbers)
            except SizesDisagree:
                self.sizes.disproved += fact.difference in self.sizes.guessed
                raise
        for node, strides in self.layouts[step]:
            real = values[node]
            expected = [e.evaluate(numbers) if isinstance(e, Expr) else e for e in strides]
            if any(a != b and n > 1 for a, b, n in zip(real.stride(), expected, real.shape, strict=True)):
                raise SizesDisagree(f"{node.name} has strides {real.stride()}, not {expected}")


class Segments:
    """Runs a graph that was cut; `compiled` has what stands for the graph of each segment, None where it is a call.

    A segment with a size of data that is 0 runs on eager kernels where it was compiled for larger ones.
    """

    def __init__(self, gm: fx.GraphModule, parts: list[Segment], compiled: list[Callable[..., Any] | None]) -> None:
        self.gm = gm
        nodes = list(gm.graph.nodes)
        self.placeholders = [node for node in nodes if node.op == "placeholder"]
        self.output: Any = nodes[-1].args[0]
        read = {m for n in (nodes[-1], *(n for part in parts for n in part.apart)) for m in n.all_input_nodes}
        self.attributes = [node for node in nodes if node.op == "get_attr" and node in read]
        sizes: Sizes | None = getattr(gm.meta.get("fake_mode"), "sizes", None)
        self.watch = _Watch(gm, parts, sizes) if sizes is not None and sizes.data else None
        symbols: set[str] = set()
        nonempty = [[] if sizes is None else _nonempty(part, sizes, symbols) for part in parts]
        self.steps = list(zip(parts, compiled, nonempty, strict=True))

    @classmethod
    def cut(cls, gm: fx.GraphModule, starts: frozenset[fx.Node], compile: Callable[..., Any]) -> Segments:
        """Runs a graph cut at `starts`; `compile` gets each part's graph and examples of its inputs."""
        parts, runs = segments(gm, starts), list[Any]()
        for graph in [part.graph for part in parts]:
            examples = [] if graph is None else [n.meta["val"] for n in graph.graph.nodes if n.op == "placeholder"]
            runs.append(None if graph is None else compile(graph, examples))
        return cls(gm, parts, runs)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        """The graph's results."""
        values: dict[fx.Node, Any] = dict(zip(self.placeholders, args, strict=True))
        values.update((node, getattr(self.gm, str(node.target))) for node in self.attributes)
        numbers = {} if self.watch is None else self.watch.begin(values)
        for step, (part, run, nonempty) in enumerate(self.steps):
            if run is not None and part.graph is not None:
                if any(e.evaluate(numbers) < 1 for e in nonempty):
                    run = part.graph.forward
                values.update(zip(part.outputs, run(*[values[node] for node in part.inputs]), strict=True))
                continue
            for node in part.apart:
                target: Any = node.target
                args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                run = target if node.op == "call_function" else getattr(args[0], target)
                values[node] = run(*args[run is not target :], **kwargs)
            if self.watch is not None:
                self.watch.see(step, values, numbers)
        return tuple(fx.map_arg(self.output, values.__getitem__))
