"""What scheduling knows of each node: reads, writes, and which nodes must come before which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import torch

from firebrick.ir.index.expr import Expr, Var
from firebrick.ir.kernels.schedule import args_in
from firebrick.ir.loops.program import Axis, Extern, Load, Masked, Nest, Node, Op, Reduce, Scan
from firebrick.ir.loops.values import roots_of, walk


@dataclass(frozen=True, slots=True)
class Access:
    """One distinct address expression of a nest. direct: no part of the address comes from data."""

    buffer: str
    index: Expr
    dtype: str
    direct: bool


@dataclass(slots=True)
class NodeFacts:
    """A node with its accesses.

    updates: whether a store combines with what is there, or goes to a place that comes from data. form: what the nest
    computes, buffers numbered by appearance as in `buffers`; nests of equal form do equal work. scans: loops along
    which something runs.
    """

    position: int
    node: Node
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    reductions: tuple[tuple[Axis, ...], ...] = ()
    updates: bool = False
    uses: frozenset[str] = field(default_factory=frozenset)
    makes: frozenset[str] = field(default_factory=frozenset)
    form: tuple[object, ...] = ()
    buffers: tuple[str, ...] = ()
    scans: tuple[Var, ...] = ()


def extern_reads(node: Extern) -> list[str]:
    """Buffers that a library call may read."""
    return list(dict.fromkeys(args_in(node)))


def extern_writes(node: Extern) -> list[str]:
    """Buffers that a library call makes or changes."""
    return list(dict.fromkeys([o for o in node.outs if o is not None] + list(node.writes)))


@cache
def draws(op: str) -> bool:
    """Whether a library call draws random numbers: what is drawn next depends on it, used or not."""
    namespace, _, name = op.partition("::")
    name, _, overload = name.partition(".")
    overload_op = getattr(getattr(getattr(torch.ops, namespace), name, None), overload or "default", None)
    return torch.Tag.nondeterministic_seeded in getattr(overload_op, "tags", ())


def acts(node: Extern) -> bool:
    """Whether a library call does more than to give results: such calls keep their order."""
    return not node.outs or draws(node.op)


def analyze(nodes: Sequence[Node]) -> list[NodeFacts]:
    """The accesses of every node, in order."""
    return [_extern(k, n) if isinstance(n, Extern) else nest_facts(k, n) for k, n in enumerate(nodes)]


def _extern(position: int, node: Extern) -> NodeFacts:
    writes = frozenset(extern_writes(node))
    reads = frozenset(extern_reads(node))
    if node.into:
        reads -= frozenset(o for o in node.outs if o is not None) - frozenset(node.writes)
    return NodeFacts(position, node, uses=reads, makes=writes)


def nest_facts(position: int, node: Nest) -> NodeFacts:
    """The accesses of a loop nest."""
    reads: dict[Access, None] = {}
    reductions: dict[tuple[Axis, ...], None] = {}
    scans: dict[Var, None] = {}
    buffers: dict[str, int] = {}
    form: list[object] = [node.axes]
    values = walk(roots_of(*node.stores))
    place = {v: k for k, v in enumerate(values)}
    for v in values:
        if isinstance(v, Op):
            form.append((v.dtype, v.name, *[place[a] for a in v.args]))
        elif isinstance(v, Load):
            reads[Access(v.buffer, v.index, v.dtype, not v.binds)] = None
            binds = tuple([(x, place[b]) for x, b in v.binds])
            form.append((v.dtype, buffers.setdefault(v.buffer, len(buffers)), v.index, binds))
        elif isinstance(v, Reduce):
            reductions[v.axes] = None
            form.append((v.dtype, v.name, v.axes, place[v.body]))
        elif isinstance(v, Scan):
            scans[v.var] = None
            form.append((v.dtype, "running", v.name, v.var, place[v.body]))
        elif isinstance(v, Masked):
            form.append((v.dtype, place[v.cond], place[v.body], v.other))
        else:
            form.append(v)
    for s in node.stores:
        binds = tuple([(x, place[b]) for x, b in s.binds])
        form.append((buffers.setdefault(s.buffer, len(buffers)), s.index, place[s.value], s.mode, binds))
    writes = tuple([Access(s.buffer, s.index, s.value.dtype, not s.binds) for s in node.stores])
    updates = any(s.mode != "set" or s.binds for s in node.stores)
    # What is written at some places only keeps what the others hold.
    uses = {a.buffer for a in reads} | {s.buffer for s in node.stores if s.mode != "set" or s.binds}
    makes = frozenset(a.buffer for a in writes)
    loops = tuple(reads), writes, tuple(reductions), updates
    return NodeFacts(position, node, *loops, frozenset(uses), makes, tuple(form), tuple(buffers), tuple(scans))


def dependencies(nodes: list[NodeFacts]) -> list[set[int]]:
    """For each node the earlier nodes (by place in the list) that must run before it: it reads what they write,
    writes what they read or write, or acts on more than its buffers as they do: draws random numbers, communicates."""
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    before: list[set[int]] = []
    acted: set[int] = set()
    for k, n in enumerate(nodes):
        needs: set[int] = set()
        if isinstance(n.node, Extern) and acts(n.node):
            needs, acted = acted, {k}
        for b in n.uses:
            needs.update(writers.get(b, ()))
        for b in n.makes:
            needs.update(writers.get(b, ()))
            needs.update(readers.get(b, ()))
        needs.discard(k)
        for b in n.uses:
            readers.setdefault(b, []).append(k)
        for b in n.makes:
            writers.setdefault(b, []).append(k)
        before.append(needs)
    return before
