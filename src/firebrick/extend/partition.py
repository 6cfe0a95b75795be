"""Divides a graph among subgraph compilers: convex groups, no cycles, with a reason for every op refused."""

from __future__ import annotations

import heapq
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from firebrick.config import Config
from firebrick.errors import PassError
from firebrick.extend.claimed_group import CompiledGroup, GroupKey, group_op
from firebrick.extend.pass_base import Context, Level, Pass, Site
from firebrick.extend.subgraph_compiler import SubgraphCompiler, tensor_facts_refuse
from firebrick.fakes.node_values import acts, drop_dead
from firebrick.ir.graph.calls import call_of, is_mutating, value_of


@dataclass(frozen=True, slots=True)
class Claim:
    """One group: who has it and what it runs."""

    name: str
    compiler: str
    nodes: tuple[str, ...]
    group: CompiledGroup | None = None


@dataclass(slots=True)
class Partition:
    """Who has which ops. `refused` maps compiler and reason to the ops that it did not take."""

    total: int = 0
    claims: list[Claim] = field(default_factory=list)
    refused: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def claimed(self) -> int:
        """Number of ops that a compiler has."""
        return sum(len(c.nodes) for c in self.claims)

    @property
    def percent(self) -> float:
        """Claimed ops in percent."""
        return 100.0 * self.claimed / self.total if self.total else 0.0

    def __str__(self) -> str:
        lines = [f"{self.claimed} of {self.total} ops claimed ({self.percent:.0f} %) in {len(self.claims)} groups"]
        by_compiler = Counter(c.compiler for c in self.claims)
        lines += [f"  {name}: {count} groups" for name, count in by_compiler.items()]
        for (compiler, reason), ops in sorted(self.refused.items(), key=lambda item: -len(item[1])):
            kinds = ", ".join(f"{op} x{n}" if n > 1 else op for op, n in Counter(ops).most_common(6))
            lines.append(f"  {compiler} refused {len(ops)}: {reason} ({kinds})")
        return "\n".join(lines)


def partition(
    gm: fx.GraphModule,
    compilers: Sequence[SubgraphCompiler],
    *,
    config: Config | None = None,
    frozen: frozenset[str] | None = None,
    as_op: bool = False,
) -> Partition:
    """Replace the groups that `compilers` claim in `gm` by one call each, in place.

    Args:
        gm: a graph whose nodes carry values; ops that write in place are never claimed nor crossed.
        compilers: asked by priority; what one gives back goes to the next.
        frozen: names of constants that groups may keep; None means all of them.
        as_op: call groups through the operator `firebrick::group`, so that the graph holds operators only; otherwise
            as submodules.

    Raises:
        PassError: two compilers share a name, or one has none.
    """
    names = [c.name for c in compilers]
    if len(set(names)) != len(names) or not all(names):
        raise PassError(f"subgraph compilers need names of their own, got {names}")
    work = _Partitioner(gm, config or Config(), frozen)
    for compiler in sorted(compilers, key=lambda c: -c.priority):
        work.offer(compiler)
    return work.finish(as_op=as_op)


class _Partitioner:
    def __init__(self, gm: fx.GraphModule, config: Config, frozen: frozenset[str] | None) -> None:
        self.gm, self.config, self.frozen = gm, config, frozen
        self.nodes = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method", "call_module")]
        self.number = {n: i for i, n in enumerate(self.nodes)}
        self.inputs: list[list[int]] = []
        self.owner = list(range(len(self.nodes)))
        self.taken: dict[int, SubgraphCompiler] = {}
        self.groups: list[tuple[SubgraphCompiler, list[int]]] = []
        self.barrier = [self._is_barrier(n) for n in self.nodes]
        self._link()
        self.report = Partition(total=sum(not self._is_part(n) for n in self.nodes))

    def _link(self) -> None:
        last, since = -1, list[int]()
        for i, node in enumerate(self.nodes):
            sources = [self.number[s] for s in node.all_input_nodes if s in self.number]
            if last >= 0:
                sources.append(last)
            if self.barrier[i]:
                sources += since
                last, since = i, []
            else:
                since.append(i)
            self.inputs.append(sources)
            if self._is_part(node):
                self.owner[i] = self.owner[self.number[node.all_input_nodes[0]]]

    @staticmethod
    def _is_part(node: fx.Node) -> bool:
        """Whether the node only picks one result of an op with several."""
        return (
            node.target is operator.getitem
            and isinstance(node.args[0], fx.Node)
            and node.args[0].op.startswith("call")
            and isinstance(value_of(node.args[0]), (tuple, list))
        )

    @staticmethod
    def _is_barrier(node: fx.Node) -> bool:
        """Whether the order of this node among all others matters: writes, and calls that make no tensor."""
        return is_mutating(node) or bool(node.meta.get("barrier")) or acts(node)

    def offer(self, compiler: SubgraphCompiler) -> None:
        """Let one compiler choose among the nodes that nobody has."""
        eligible = [False] * len(self.nodes)
        for i, node in enumerate(self.nodes):
            if self.owner[i] in self.taken or self._is_part(node):
                continue
            reason = "writes in place" if self.barrier[i] else self._ask(compiler, node)
            if reason:
                self._refuse(compiler, reason, [i])
            else:
                eligible[i] = True
        for i, node in enumerate(self.nodes):
            if self._is_part(node):
                eligible[i] = eligible[self.owner[i]]
        owner = list(self.owner)
        for group in grow_clusters(self.inputs, owner, eligible):
            ops = [i for i in group if not self._is_part(self.nodes[i])]
            saved = compiler.cost([self.nodes[i] for i in group])
            if len(ops) < compiler.min_size:
                self._refuse(compiler, f"group smaller than {compiler.min_size}", ops)
            elif saved < 0:
                self._refuse(compiler, "group costs more than it saves", ops)
            else:
                root = self.owner[group[0]]
                for i in group:
                    self.owner[i] = root
                self.taken[root] = compiler
                self.groups.append((compiler, group))

    def _ask(self, compiler: SubgraphCompiler, node: fx.Node) -> str:
        if "val" not in node.meta:
            return "its shape is not known"
        if any(not _is_tensor(value_of(n)) for n in node.all_input_nodes):
            return "it reads a number that the program computes"
        reason = tensor_facts_refuse(compiler, node)
        if reason:
            return reason
        answer = compiler.supports(node)
        if isinstance(answer, str):
            return answer or "not supported"
        return "" if answer else "not supported"

    def _refuse(self, compiler: SubgraphCompiler, reason: str, numbers: list[int]) -> None:
        for i in numbers:
            call = call_of(self.nodes[i])
            name = call.name if call is not None else str(self.nodes[i].target)
            self.report.refused.setdefault((compiler.name, reason), []).append(name)

    def finish(self, *, as_op: bool) -> Partition:
        """Rebuild the graph with one call a group."""
        if not self.groups:
            return self.report
        members = {i: k for k, (_, group) in enumerate(self.groups) for i in group}
        graph = fx.Graph(tracer_cls=self.gm.graph._tracer_cls)
        copy_of: dict[fx.Node, fx.Node] = {}
        for node in self.gm.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                copy_of[node] = graph.node_copy(node, copy_of.__getitem__)
        for item in self._order(members):
            if isinstance(item, fx.Node):
                copy_of[item] = graph.node_copy(item, copy_of.__getitem__)
            else:
                compiler, group = self.groups[item]
                self._call_group(graph, copy_of, item, compiler, [self.nodes[i] for i in group], as_op=as_op)
        output = self.gm.graph.output_node()
        result = graph.output(fx.map_arg(output.args[0], copy_of.__getitem__))
        result.meta = dict(output.meta)
        self.gm.graph = graph
        drop_dead(graph)
        return self.report

    def _order(self, members: dict[int, int]) -> list[fx.Node | int]:
        """Nodes and group numbers in an order in which each comes after what it reads, near the present one."""
        place = {i: ("group", members[i]) if i in members else ("node", i) for i in range(len(self.nodes))}
        first: dict[tuple[str, int], int] = {}
        waits: dict[tuple[str, int], set[tuple[str, int]]] = {}
        users: dict[tuple[str, int], set[tuple[str, int]]] = {}
        for i, sources in enumerate(self.inputs):
            first.setdefault(place[i], i)
            mine = waits.setdefault(place[i], set())
            for s in sources:
                if place[s] != place[i]:
                    mine.add(place[s])
                    users.setdefault(place[s], set()).add(place[i])
        ready = [(first[p], p) for p, before in waits.items() if not before]
        heapq.heapify(ready)
        ordered: list[fx.Node | int] = []
        while ready:
            _, item = heapq.heappop(ready)
            ordered.append(item[1] if item[0] == "group" else self.nodes[item[1]])
            for user in users.get(item, ()):
                waits[user].discard(item)
                if not waits[user]:
                    heapq.heappush(ready, (first[user], user))
        if len(ordered) != len(waits):
            raise PassError("the groups depend on each other in a cycle")
        return ordered

    def _call_group(
        self,
        graph: fx.Graph,
        copy_of: dict[fx.Node, fx.Node],
        number: int,
        compiler: SubgraphCompiler,
        nodes: list[fx.Node],
        *,
        as_op: bool,
    ) -> None:
        name = f"group_{number}"
        sub, inputs, outputs = self._extract(nodes, constants=not compiler.device)
        ops = tuple(n.name for n in nodes if not self._is_part(n))
        if compiler.device:
            self.report.claims.append(Claim(name, compiler.name, ops))
            results = _place(graph, compiler, sub, [copy_of[n] for n in inputs])
            copy_of.update(zip(outputs, results, strict=True))
            return
        group = CompiledGroup(compiler, sub, name=name, config=self.config)
        self.report.claims.append(Claim(name, compiler.name, ops, group))
        arguments = [copy_of[n] for n in inputs]
        if as_op:
            call = graph.call_function(group_op(), (GroupKey.of(group), arguments))
        else:
            self.gm.add_module(name, group)
            call = graph.call_module(name, tuple(arguments))
        call.meta = {"val": [value_of(o) for o in outputs], "stack": nodes[0].meta.get("stack", ())}
        for i, old in enumerate(outputs):
            picked = graph.call_function(operator.getitem, (call, i))
            picked.meta = dict(old.meta)
            copy_of[old] = picked

    def _extract(self, nodes: list[fx.Node], constants: bool) -> tuple[fx.GraphModule, list[fx.Node], list[fx.Node]]:
        """The group as a graph of its own, its inputs, and those of its nodes that are used outside."""
        sub = fx.Graph()
        inside, copy_of = set(nodes), dict[fx.Node, fx.Node]()
        inputs: list[fx.Node] = []
        root = torch.nn.Module()

        sources = dict.fromkeys(s for n in nodes for s in n.all_input_nodes if s not in inside)
        for source in sources:
            if constants and source.op == "get_attr" and self._may_keep(source):
                name = str(source.target).replace(".", "_")
                setattr(root, name, attrgetter(str(source.target))(self.gm))
                continue
            copy_of[source] = sub.placeholder(f"in_{len(inputs)}")
            copy_of[source].meta = {"val": value_of(source)}
            inputs.append(source)
        for source in sources:
            if source not in copy_of:
                copy_of[source] = sub.get_attr(str(source.target).replace(".", "_"))
                copy_of[source].meta = dict(source.meta)
        for node in nodes:
            if node.op == "call_module":
                root.add_module(str(node.target).replace(".", "_"), self.gm.get_submodule(str(node.target)))
            copy_of[node] = sub.node_copy(node, copy_of.__getitem__)
            if node.op == "call_module":
                copy_of[node].target = str(node.target).replace(".", "_")
        outputs = [n for n in nodes if any(u not in inside for u in n.users)]
        outputs = [n for n in outputs if not isinstance(value_of(n), (tuple, list))]
        sub.output(tuple(copy_of[o] for o in outputs))
        return fx.GraphModule(root, sub, class_name="Group"), inputs, outputs

    def _may_keep(self, node: fx.Node) -> bool:
        return self.frozen is None or str(node.target) in self.frozen


def _place(
    graph: fx.Graph, compiler: SubgraphCompiler, sub: fx.GraphModule, inputs: Sequence[fx.Node]
) -> Sequence[fx.Node]:
    """Copy a group into a graph, each node marked with the compiler's device; returns what it gives."""
    copy_of: dict[fx.Node, fx.Node] = {}
    arguments = iter(inputs)
    for node in compiler.rewrite(sub).graph.nodes:
        if node.op == "placeholder":
            copy_of[node] = next(arguments)
        elif node.op == "output":
            results: Any = node.args[0]
            return [copy_of[n] for n in results]
        else:
            copy_of[node] = graph.node_copy(node, copy_of.__getitem__)
            copy_of[node].meta = {**node.meta, "device": compiler.device}
    raise AssertionError("a graph without an output")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, (tuple, list)) and all(map(_is_tensor, value)))


class PartitionPass(Pass):
    """Gives parts of the graph to subgraph compilers. Runs after all other passes of its level."""

    cacheable = False

    def __init__(self, compilers: Sequence[SubgraphCompiler], level: Level = "aten") -> None:
        self.name, self.level = "subgraph compilers: " + ", ".join(c.name for c in compilers), level
        self.compilers = list(compilers)
        self.last: Partition | None = None

    def run(self, gm: fx.GraphModule) -> bool:
        """Apply with a default context."""
        return self.apply(gm, Context())

    def apply(self, gm: fx.GraphModule, context: Context) -> bool:
        """Claim groups, and report each."""
        result = partition(gm, self.compilers, config=context.config, frozen=context.frozen, as_op=True)
        self.last = result
        context.report.notes.append(str(result))
        context.report.sites += [Site(c.name, True, f"{c.compiler}: {len(c.nodes)} ops") for c in result.claims]
        return bool(result.claims)


def as_passes(items: Sequence[Any]) -> tuple[Pass, ...]:
    """What `passes=` accepts as passes: subgraph compilers become one partition pass, last. Sequences may be nested.

    Raises:
        PassError: an item is neither a `Pass` nor a `SubgraphCompiler`.
    """
    passes: list[Pass] = []
    compilers: list[SubgraphCompiler] = []
    for item in _flatten(items):
        if isinstance(item, Pass):
            passes.append(item)
        elif isinstance(item, SubgraphCompiler):
            compilers.append(item)
        else:
            raise PassError(f"{item!r} is neither a Pass nor a SubgraphCompiler")
    for level in ("torch", "aten"):
        chosen = [c for c in compilers if c.level == level]
        if chosen:
            step = PartitionPass(chosen, level)
            step.after = tuple(p.name for p in passes if p.level == level)
            passes.append(step)
    return tuple(passes)


def _flatten(items: Any) -> list[Any]:
    return [x for item in items for x in _flatten(item)] if isinstance(items, (tuple, list)) else [items]


def grow_clusters(inputs: Sequence[Sequence[int]], owner: list[int], eligible: Sequence[bool]) -> list[list[int]]:
    """Group the eligible clusters into maximal connected convex groups.

    Args:
        inputs: for each node the nodes that it reads; they come earlier in some topological order.
        owner: for each node its cluster, named by one of the cluster's nodes; clusters are convex and their quotient
            graph is acyclic. It is updated to the new groups.
        eligible: for each node whether it may be grouped; equal within a cluster.

    Returns:
        The groups as lists of nodes in ascending order.
    """
    quotient = _Quotient(inputs, owner)
    order = quotient.topological()
    level: dict[int, int] = {}
    for c in order:
        rises = [level[p] + (eligible[c] and not eligible[p]) for p in quotient.before[c]]
        level[c] = max(rises, default=0)
    for c in order:
        if eligible[c]:
            for p in list(quotient.before[quotient.find(c)]):
                if eligible[p] and level[p] == level[c] and quotient.find(p) != quotient.find(c):
                    quotient.unite(p, c)
    _unite_neighbours(quotient, eligible)
    groups: dict[int, list[int]] = {}
    for node in range(len(owner)):
        owner[node] = quotient.find(owner[node])
        if eligible[node]:
            groups.setdefault(owner[node], []).append(node)
    return list(groups.values())


class _Quotient:
    """The graph of clusters: sets of predecessors and successors by representative, kept under union."""

    def __init__(self, inputs: Sequence[Sequence[int]], owner: Sequence[int]) -> None:
        self.parent: dict[int, int] = {c: c for c in owner}
        self.before: dict[int, set[int]] = {c: set() for c in owner}
        self.after: dict[int, set[int]] = {c: set() for c in owner}
        for node, sources in enumerate(inputs):
            for source in sources:
                a, b = owner[source], owner[node]
                if a != b:
                    self.before[b].add(a)
                    self.after[a].add(b)

    def find(self, c: int) -> int:
        while self.parent[c] != c:
            self.parent[c] = self.parent[self.parent[c]]
            c = self.parent[c]
        return c

    def topological(self) -> list[int]:
        missing = {c: len(before) for c, before in self.before.items()}
        ready = sorted((c for c, n in missing.items() if n == 0), reverse=True)
        order = []
        while ready:
            c = ready.pop()
            order.append(c)
            for s in self.after[c]:
                missing[s] -= 1
                if missing[s] == 0:
                    ready.append(s)
        assert len(order) == len(missing), "the clusters' graph has a cycle"
        return order

    def unite(self, a: int, b: int) -> int:
        """Make one cluster of two; returns the representative."""
        a, b = self.find(a), self.find(b)
        if len(self.before[a]) + len(self.after[a]) < len(self.before[b]) + len(self.after[b]):
            a, b = b, a
        self.parent[b] = a
        for c in self.before.pop(b):
            self.after[c].discard(b)
            if c != a:
                self.after[c].add(a)
                self.before[a].add(c)
        for c in self.after.pop(b):
            self.before[c].discard(b)
            if c != a:
                self.before[c].add(a)
                self.after[a].add(c)
        return a


def _unite_neighbours(quotient: _Quotient, eligible: Sequence[bool]) -> None:
    """Unite groups joined by an edge where no other path joins them."""
    order = quotient.topological()
    bit = {c: 1 << i for i, c in enumerate(order)}
    reach: dict[int, int] = {}
    for c in reversed(order):
        mask = 0
        for s in quotient.after[c]:
            mask |= reach[s] | bit[s]
        reach[c] = mask
    work = [c for c in order if eligible[c]]
    while work:
        a = work.pop()
        if quotient.parent[a] != a:
            continue
        for b in sorted(quotient.after[a]):
            if not eligible[b] or any(reach[s] & bit[b] for s in quotient.after[a] if s != b):
                continue
            both, joined = bit[a] | bit[b], (reach[a] | reach[b]) & ~(bit[a] | bit[b])
            united = quotient.unite(a, b)
            gone = b if united == a else a
            del reach[gone], bit[gone]
            reach[united] = joined
            bit[united] = both
            for c, mask in reach.items():
                if c != united and mask & both:
                    reach[c] = mask | both | joined
            work += [p for p in quotient.before[united] if eligible[p]]
            work.append(united)
            break
