"""Divides a joint graph into a forward and a backward graph, given the nodes to save."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from firebrick.config import Config
from firebrick.errors import FirebrickError, LoweringError, PassError
from firebrick.fakes.node_values import acts, origins
from firebrick.ir.graph.aten import BY_LIBRARY, Alias, AtenGraph
from firebrick.ir.graph.calls import copy_node, tensors_in
from firebrick.ir.index.expr import Var
from firebrick.ir.index.operation import as_data
from firebrick.ir.index.sizes import expressions, size_of
from firebrick.runtime import Place, Tangent, TrainingPlan
from firebrick.runtime.unwatched import unwatched
from firebrick.trace.aliasing import overlaps
from firebrick.trace.inference_trace import needs_grad
from firebrick.trace.joint import JointGraph, trace_joint
from firebrick.trace.recompute import Phases, ancestors, base_of, bytes_of, is_random, min_cut
from firebrick.trace.tape import module_of

aten = torch.ops.aten

NEAR = "cpu", "meta"
"""Types of device from which nothing is offloaded."""

SIZES = ("sizes", "", 0)
"""Key of the tensor without elements by whose sizes a forward tells its backward what the symbols are."""


@dataclass(frozen=True, slots=True)
class Division:
    """Two graphs and how they are joined.

    The backward takes the saved tensors, then the tangents. `order`: for each of the plan's `wrt`, which of the
    backward's outputs is its gradient, None if no result depends on it. keys, sizes: what tells each saved tensor in
    any trace of the graph, and its bytes. refused: as the JointGraph's.
    """

    forward: AtenGraph
    backward: AtenGraph
    plan: TrainingPlan
    order: tuple[int | None, ...]
    keys: tuple[Any, ...]
    sizes: tuple[int, ...]
    refused: dict[int, RuntimeError]


def divide(joint: JointGraph, saved: Iterable[fx.Node], keys: Sequence[Any] = (), offload: int = 0) -> Division:
    """Divide at `saved`, or what has these `keys`; the rest is made again; raises PassError: a random op can't be.

    offload: bytes from which what is saved on a GPU, and nobody else holds, waits on the CPU; 0: nothing does.
    """
    divider = _Divider(joint, saved, keys)
    division = divider.run()
    return divider.offloaded(division, offload) if offload else division


def bytes_saved(gm: fx.GraphModule, example_inputs: Sequence[Any], config: Config) -> tuple[int, ...]:
    """What the compiled form of a torch-level graph keeps for its backward: bytes, those of them that are offloaded,
    and how many tensors these are; nothing where it has no backward."""
    try:
        with unwatched():
            joint = trace_joint(gm, example_inputs) if needs_grad(gm, example_inputs) else None
        plan = None if joint is None else divide(joint, min_cut(joint, config.memory_budget), (), config.offload).plan
        return () if plan is None else (plan.bytes_saved, sum(n for _, n in plan.offloaded), len(plan.offloaded))
    except FirebrickError:  # it runs on eager kernels
        return ()


class _Divider:
    """One division."""

    def __init__(self, joint: JointGraph, saved: Iterable[fx.Node], keys: Sequence[Any]) -> None:
        self.joint, self.phases = joint, Phases(joint)
        self.inputs, self.tangents = joint.placeholders()
        self.symbols = tuple([(name, *at) for name, at in symbol_places(self.inputs).items()])
        self.literals = {n for n in joint.gm.graph.nodes if n.op == "get_attr" and str(n.target).startswith("_literal")}
        self.keys = self._keys()
        node_of = {key: node for node, key in self.keys.items()}
        held = [n for n in self.keys if n.target in joint.held]
        self.saved = self._closed([node_of[key] for key in keys if key != SIZES] if keys else [*saved, *held])
        if self.symbols:
            self.saved.append(self._sizes())
            node_of[SIZES] = self.saved[-1]
        if keys:
            if len(self.saved) != len(keys):
                raise PassError("the backward of the whole graph needs other tensors than were saved")
            self.saved = [node_of[key] for key in keys]

    def _keys(self) -> dict[fx.Node, tuple[Any, ...]]:
        """What tells the forward's nodes in any trace: a name, or a captured node's number and which of its nodes."""
        counts: Counter[tuple[int, ...]] = Counter()
        keys: dict[fx.Node, tuple[Any, ...]] = {}
        for node in self.joint.gm.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                keys[node] = "const" if node.op == "get_attr" else "input", str(node.target), 0
            elif node in self.phases.forward:
                number = origins(node)
                keys[node] = "call", number[0] if len(number) == 1 else number, counts[number]
                counts[number] += 1
        return keys

    def _closed(self, saved: Iterable[fx.Node]) -> list[fx.Node]:
        """What is saved, with the inputs and constants that computing the rest again starts from."""
        chosen = {base_of(n) for n in saved} - self.literals
        saved_nodes, seen = [], set()
        waiting = [*self.phases.needed, *(n for n in chosen if n.op in ("placeholder", "get_attr"))]
        while waiting:
            node = waiting.pop()
            if node in seen or node in self.literals:
                continue
            seen.add(node)
            if node in chosen or node.op in ("placeholder", "get_attr"):
                saved_nodes.append(node)
                continue
            if is_random(node):
                raise PassError(
                    f"the partition computes {node.name} again in the backward, and {node.target} is random",
                    fix=f"have the partition save {node.name} too",
                )
            waiting += node.all_input_nodes
        order = {n: i for i, n in enumerate(self.joint.gm.graph.nodes)}
        return sorted(saved_nodes, key=order.__getitem__)

    def run(self) -> Division:
        results, gradients = self.joint.results()
        mutated = len(self.joint.mutated)
        aliases = self.joint.outputs
        kept = [i for i in range(mutated, len(results)) if i - mutated >= len(aliases) or aliases[i - mutated] is None]
        place = {position: Place("result", i) for i, position in enumerate(kept)}
        ends = self.joint.boundaries
        values = [results[i] for i in kept]
        extra: list[fx.Node] = []
        places = [self._place(node, values, extra) for node in self.saved]
        forward = self._graph(self.inputs, results[:mutated] + values + extra, self.joint.mutated)
        forward.outputs = [None] * (len(values) + len(extra))
        _copy_arguments(forward.gm.graph, first=mutated + len(values))
        backward, order = self._backward(gradients)
        random = filter(is_random, forward.gm.graph.nodes)
        sizes = tuple([bytes_of(n) if p.kind == "result" else 0 for n, p in zip(self.saved, places, strict=True)])
        plan = TrainingPlan(
            results=len(values),
            outputs=tuple(self._output(i, place) for i in range(len(aliases))),
            saved=tuple(places),
            tangents=tuple(self._tangent(t, p, place) for t, p in zip(self.tangents, self.joint.tangents, strict=True)),
            dirty=tuple(self._named(n) for n in self.joint.mutated if n in self.joint.dirty),
            wrt=tuple(place[ends[n]] if n in ends else self._named(n) for n in self.joint.wrt),
            of=tuple(self._named(n) for n in self.joint.of),
            hidden=self.joint.hidden,
            twisted=self.joint.twisted,
            own=self.joint.own,
            cuts=tuple([(k, int(place[p].at)) for k, p in self.joint.cuts.items()]),
            reach=tuple(
                tuple([i for i in reach if g is not None or i in self.joint.refused])
                for g, reach in zip(gradients, self.joint.reach, strict=True)
            ),
            bytes_saved=sum(sizes),
            symbols=self.symbols,
            reads=tuple(_reads(forward.gm.graph)),
            draws=tuple(sorted({str(t.device) for n in random for t in tensors_in(n.meta.get("val"))})),
        )
        keys = tuple([self.keys[n] for n in self.saved])
        return Division(forward, backward, plan, order, keys, sizes, self.joint.refused)

    def _sizes(self) -> fx.Node:
        """Make the tensor that has the symbols as its sizes."""
        graph = self.joint.gm.graph
        shape = [0, *(self.inputs[i].meta["val"].shape[dim] for _, i, dim in self.symbols)]
        mode = self.inputs[self.symbols[0][1]].meta["val"].fake_mode
        with graph.inserting_before(graph.output_node()):
            node = zeros_node(graph, mode, shape, torch.uint8, torch.device("cpu"))
        self.keys[node] = SIZES
        return node

    def offloaded(self, division: Division, least: int) -> Division:
        """Have what is made for the backward alone, on a GPU and of so many bytes, wait on the CPU: it is copied there
        as soon as it is made, and back before its first use."""
        plan, graph, moved = division.plan, division.forward.gm.graph, list[tuple[str, int]]()
        results: Any = graph.output_node().args[0]
        inputs = list(division.backward.gm.graph.nodes)
        for node, place, size, leaf in zip(self.saved, plan.saved, division.sizes, inputs, strict=False):
            device = node.meta["val"].device
            mine = size >= least and int(place.at) >= plan.results and node.op == "call_function" and leaf.users
            if not mine or device.type in NEAR:
                continue
            result = results[len(division.forward.mutated) + int(place.at)]
            with graph.inserting_after(result):
                away = _added(graph, aten._to_copy.default, result, device=torch.device("cpu"), non_blocking=True)
            if expressions(away.meta["val"].stride()) != expressions(result.meta["val"].stride()):
                graph.erase_node(away)  # memory with gaps, which a copy has not
                continue
            graph.output_node().replace_input_with(result, away)
            moved.append((str(device), size))
            with leaf.graph.inserting_before(next(n for n in leaf.graph.nodes if leaf in n.all_input_nodes)):
                leaf.meta["val"] = away.meta["val"]
                back = _added(leaf.graph, aten._to_copy.default, leaf, device=device, non_blocking=True)
            leaf.replace_all_uses_with(back, lambda user, back=back: user is not back)
        return replace(division, plan=replace(plan, offloaded=tuple(moved)))

    # ------------------------------------------------------------ places

    def _named(self, name: str) -> Place:
        names = [node.name for node in self.inputs]
        return Place("input", names.index(name)) if name in names else Place("const", name)

    def _place(self, node: fx.Node, values: list[Any], extra: list[fx.Node]) -> Place:
        """Where the runtime finds the value to save; new results of the forward are appended to `extra`."""
        if node.op in ("placeholder", "get_attr"):
            name = str(node.target)
            if name not in self.joint.mutated:
                return self._named(name)
        for i, value in enumerate(values):
            # A view of the value shares its version counter, so that writes to either are noticed.
            if isinstance(value, fx.Node) and base_of(value) is node:
                val, whole = node.meta["val"], value.meta["val"]
                if val.dtype != whole.dtype or size_of(whole.numel()) != size_of(val.numel()):
                    continue  # the result has memory of its own
                return Place("result", i, None if value is node else _layout(val, whole))
        extra.append(node)
        return Place("result", len(values) + len(extra) - 1)

    def _output(self, index: int, place: dict[int, Place]) -> tuple[Place, bool | None]:
        alias, grad = self.joint.outputs[index], self.joint.grads[index]
        if alias is None:
            return place[len(self.joint.mutated) + index], grad
        if alias.dtype is not None:
            raise LoweringError("a result of a graph that needs gradients reads memory as another type")
        if grad and alias.base == "input" and overlaps(self.inputs[int(alias.index)].meta["val"]):
            # `as_strided` would share the gradient of a place out among all its elements.
            raise LoweringError("a result is a view of an input that holds several elements in one place")
        layout = tuple(map(as_data, alias.shape)), tuple(map(as_data, alias.strides)), as_data(alias.offset)
        base = place[int(alias.index)].at if alias.base == "output" else alias.index
        return Place("result" if alias.base == "output" else alias.base, base, layout), grad

    def _tangent(self, node: fx.Node, position: int, place: dict[int, Place]) -> Tangent:
        val = node.meta["val"]
        names = self.joint.mutated
        of = self._named(names[position]) if position < len(names) else place[position]
        return Tangent(of, str(val.dtype).removeprefix("torch."), *_layout(val, val)[:2])

    # ------------------------------------------------------------ graphs

    def _graph(self, inputs: list[fx.Node], results: list[Any], mutated: list[str]) -> AtenGraph:
        graph, env = fx.Graph(), {}
        for node in inputs:
            env[node] = graph.create_node("placeholder", node.name, name=node.name)
            env[node].meta.update(node.meta)
        wanted = [r for r in results if isinstance(r, fx.Node)]
        if inputs is self.inputs:  # what is drawn next depends on draws that nothing uses, and assertions raise
            acting = [n for n in self.joint.gm.graph.nodes if is_random(n) or acts(n)]
            wanted += [n for n in acting if n in self.phases.forward]
        live = ancestors(wanted, set(inputs))
        again = set() if inputs is self.inputs else self.phases.forward  # is computed where it is first used
        nodes = (n for n in self.joint.gm.graph.nodes if n not in again and (n in live or n.target in mutated))
        for node in [*nodes, *wanted]:
            _copy_needed(graph, node, env)
        graph.output(tuple(env[r] if isinstance(r, fx.Node) else r for r in results))
        gm, constants = module_of(graph, self.joint.constants)
        return AtenGraph(gm, constants, [*mutated], name=self.joint.name, bits={**self.joint.bits})

    def _backward(self, gradients: list[Any]) -> tuple[AtenGraph, tuple[int | None, ...]]:
        """The backward's graph, each gradient once."""
        unique = list(dict.fromkeys(g for g in gradients if g is not None))
        backward = self._graph([*self.saved, *self.tangents], unique, [])
        order = tuple(None if g is None else unique.index(g) for g in gradients)
        # Gradients may be views of tangents, as in eager mode; other memory of the caller is copied.
        graph = backward.gm.graph
        output = graph.output_node()
        inputs = [n for n in graph.nodes if n.op == "placeholder"]
        tangents, reused = inputs[len(self.saved) :], set()
        returned: Any = output.args[0]
        results: list[Any] = []
        for node in returned:
            base = base_of(node)
            alias = None
            val, whole = node.meta["val"], base.meta["val"]
            if base in tangents and base not in reused and whole.dtype == val.dtype:
                offset = size_of(val.storage_offset()) - size_of(whole.storage_offset())
                alias = Alias("input", inputs.index(base), expressions(val.shape), expressions(val.stride()), offset)
                reused.add(base)
            backward.outputs.append(alias)
            results.append(None if alias is not None else node)
        output.args = (tuple(results),)
        _copy_arguments(graph)
        return backward, order


def _copy_arguments(graph: fx.Graph, first: int = 0) -> None:
    """Return copies where outputs from `first` on show memory of the caller."""
    output = graph.output_node()
    results: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    for i, node in enumerate(results[first:], first):
        if isinstance(node, fx.Node) and base_of(node).op in ("placeholder", "get_attr"):
            with graph.inserting_before(output):
                results[i] = _added(graph, aten.clone.default, node)
    output.args = (tuple(results),)


def _added(graph: fx.Graph, target: Any, node: fx.Node, **options: Any) -> fx.Node:
    """Add a call on one node, that loops don't take over if it has options."""
    added, val = graph.call_function(target, (node,), options), node.meta["val"]
    added.meta = {"val": val.fake_mode.__torch_dispatch__(target, (), (val,), options), BY_LIBRARY: bool(options)}
    return added


def _copy_needed(graph: fx.Graph, node: fx.Node, env: dict[fx.Node, fx.Node]) -> None:
    """Copy a node behind what it needs."""
    waiting = [node]
    while waiting:
        node = waiting[-1]
        missing = [] if node in env else [n for n in node.all_input_nodes if n not in env]
        waiting += reversed(missing)
        if not missing:
            env[node] = env.get(node) or copy_node(graph, node, env.__getitem__)
            waiting.pop()


def _layout(val: torch.Tensor, whole: torch.Tensor) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    """Sizes, strides and the distance from the beginning of other memory, as a plan has them."""
    sizes, strides = ([as_data(size) for size in expressions(row)] for row in (val.shape, val.stride()))
    offset = size_of(val.storage_offset()) - size_of(whole.storage_offset())
    return tuple(sizes), tuple(strides), as_data(offset)


def symbol_places(inputs: Iterable[fx.Node]) -> dict[str, tuple[int, int]]:
    """Where the symbols of sizes are found: the number of an input, and its dimension."""
    places: dict[str, tuple[int, int]] = {}
    for i, node in enumerate(inputs):
        for dim, size in enumerate(expressions(node.meta["val"].shape) if "val" in node.meta else ()):
            if isinstance(size, Var):
                places.setdefault(size.name, (i, dim))
    return places


def zeros_node(
    graph: fx.Graph, mode: Any, shape: list[Any], dtype: Any, device: Any, layout: Any = torch.strided
) -> fx.Node:
    """Add zeros to a graph."""
    options = {"dtype": dtype, "layout": layout, "device": device, "pin_memory": False}
    node = graph.call_function(aten.full.default, ())
    node.args, node.kwargs = (shape, 0), {**options}  # behind, since torch warns of sizes that are symbols
    node.meta["val"] = mode.__torch_dispatch__(aten.full.default, (), (shape, 0), options)
    return node


def _reads(graph: fx.Graph) -> Iterable[int | str]:
    """Positions of inputs and names of constants that a graph reads."""
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    yield from (i for i, n in enumerate(inputs) if n.users)
    yield from (str(n.target) for n in graph.nodes if n.op == "get_attr" and n.users)
