"""Cleans a program before fusion: copies are seen through, cheap or once-used pointwise results are computed where they
are read, and what nobody reads is dropped.

    n0 for i in 8: t[i] = exp(x[i])                  n1 for i in 2, j in 4: y[i + 2*j] = exp(x[4*i + j]) + 1
    n1 for i in 2, j in 4: y[i + 2*j] = t[4*i + j] + 1
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

from firebrick.fuse.dependencies import acts, extern_reads, extern_writes
from firebrick.ir.index.expr import ZERO, Expr, FloorDiv, Mod, Var, floordiv, mod
from firebrick.ir.loops.program import Extern, Index, Load, LoopProgram, Masked, Nest, Node, Reduce, Ref, Store, Value
from firebrick.ir.loops.values import Rewriter, Table, hint, loads_of, roots_of, walk

_CHEAP = 2
"""Cost up to which a value is rather computed again than stored, with one load at most."""
_MOST_LOADS = 48
"""Loads that one value may come to have."""


def escaping(program: LoopProgram) -> set[str]:
    """Buffers that outlive the program: those that its outputs view, inputs and constants."""
    names = {o.buffer for o in program.outputs if isinstance(o, Ref)}
    names.update(b.name for b in program.buffers if b.kind in ("input", "const", "derived", "output"))
    return names


def drop_dead(program: LoopProgram, nodes: list[Node]) -> list[Node]:
    """The nodes that something reads; a library call stays if it has other effects: it writes, or draws numbers."""
    live = escaping(program)
    needed: list[Node] = []
    for node in reversed(nodes):
        if isinstance(node, Extern):
            if node.writes or acts(node) or any(w in live for w in extern_writes(node)):
                live.update(extern_reads(node))
                needed.append(node)
            continue
        stores = tuple([s for s in node.stores if s.buffer in live])
        if not stores:
            continue
        if len(stores) != len(node.stores):
            node = replace(node, stores=stores)
        live.update(v.buffer for v in loads_of(*stores))
        needed.append(node)
    return needed[::-1]


def inline(program: LoopProgram, nodes: list[Node], facts: Table) -> list[Node]:
    """Compute pointwise temporaries where they are read, as far as that costs nothing."""
    return _Inliner(program, nodes, facts).run()


class _Inliner:
    def __init__(self, program: LoopProgram, nodes: list[Node], facts: Table) -> None:
        self.nodes = nodes
        self.facts = facts
        self.keep = escaping(program)
        self.writers = Counter[str]()
        self.readers: dict[str, list[int]] = {}
        self.fixed: set[str] = set()
        self._survey()
        self.ready: dict[str, tuple[Nest, Store]] = {}
        self.devices = {b.name: b.device for b in program.buffers}

    def _survey(self) -> None:
        for k, node in enumerate(self.nodes):
            if isinstance(node, Extern):
                self.fixed.update(extern_reads(node))
                self.writers.update(extern_writes(node))
                continue
            self.writers.update(s.buffer for s in node.stores)
            self.fixed.update(s.buffer for s in node.stores if s.mode != "set")
            for b in {v.buffer for v in loads_of(*node.stores)}:
                self.readers.setdefault(b, []).append(k)

    def run(self) -> list[Node]:
        out: list[Node] = []
        for node in self.nodes:
            if isinstance(node, Extern):
                out.append(node)
                continue
            new = self._rewrite(node)
            for s in new.stores:
                if self._may_move(new, s):
                    self.ready[s.buffer] = (new, s)
            out.append(new)
        return out

    def _may_move(self, nest: Nest, s: Store) -> bool:
        """Whether the readers of a stored temporary could compute it themselves."""
        if s.buffer in self.keep or s.buffer in self.fixed or s.binds or self.writers[s.buffer] != 1:
            return False
        facts = self.facts(s.value)
        readers = len(self.readers.get(s.buffer, ()))
        if facts.reduces or readers == 0:
            return False
        # What is read must not change before the readers run.
        if any(
            self.writers.get(v.buffer, 0) > 1 or (v.buffer in self.keep and self.writers.get(v.buffer))
            for v in loads_of(s)
        ):
            return False
        return readers == 1 or facts.loads == 0 or (facts.cost <= _CHEAP and facts.loads <= 1)

    def _rewrite(self, node: Nest) -> Nest:
        roots = roots_of(*node.stores)
        reads: dict[str, list[Load]] = {}
        device = self.devices[node.stores[0].buffer]
        for v in loads_of(*node.stores):
            if v.buffer in self.ready and self.devices[v.buffer] == device:
                reads.setdefault(v.buffer, []).append(v)
        if not reads:
            return node
        moved: dict[str, tuple[Nest, Store]] = {}
        parts = dict.fromkeys(node.parts)
        budget = _MOST_LOADS
        for buffer, loads in reads.items():
            nest, store = self.ready[buffer]
            facts = self.facts(store.value)
            again = len(loads) > 1 or self._repeats(node, nest, loads[0], roots)
            if facts.loads > budget or (again and (facts.cost > 2 * _CHEAP or facts.loads > 1)):
                continue
            if any(_solve(nest, store, load) is None for load in loads):
                continue
            budget -= facts.loads
            moved[buffer] = nest, store
            parts.update(dict.fromkeys(nest.parts))
        if not moved:
            return node
        rewrite = Rewriter(
            lambda e: e, lambda load: (load.buffer in moved and _solve(*moved[load.buffer], load)) or load
        )
        return replace(node, stores=tuple([rewrite.store(s) for s in node.stores]), parts=tuple(parts))

    def _repeats(self, reader: Nest, maker: Nest, load: Load, roots: list[Value]) -> bool:
        """Whether the reader would compute an element more than once."""
        folded = [a for v in walk(roots) if isinstance(v, Reduce) and load in walk([v.body]) for a in v.axes]
        mine, theirs = (math.prod(hint(a.size) for a in axes) for axes in ((*reader.axes, *folded), maker.axes))
        return mine > theirs


def _solve(maker: Nest, store: Store, load: Load) -> Value | None:
    """The stored value in terms of the reader's variables, if the maker's axes follow from the address simply.

    What the reader looks up by an index from data is looked up in what the value is made of.
    """
    bound = {v: (v, b) for v, b in load.binds}
    if bound and any(isinstance(v, Index | Masked) or (isinstance(v, Load) and v.binds) for v in walk([store.value])):
        return None
    axes = [a.var for a in maker.axes]
    split = store.index.split(axes)
    if split is None:
        return None
    strides, start = split
    rest = load.index - start
    subs: dict[Var, Expr] = {}
    for v in sorted(axes, key=lambda v: hint(strides[v]), reverse=True):
        stride = strides[v]
        if stride is ZERO:
            if v.hi > 0:
                return None
            subs[v] = ZERO
            continue
        subs[v] = floordiv(rest, stride)
        rest = mod(rest, stride)
        if _divides(subs[v]):
            return None
    if rest is not ZERO:
        return None

    def looked_up(load: Load) -> Load:
        binds = tuple([bound[v] for v in bound if v in load.index.vars()])
        return Load(load.dtype, load.buffer, load.index, binds) if binds else load

    return Rewriter(lambda e: e.subs(subs), looked_up)(store.value)


def _divides(e: Expr) -> bool:
    return any(
        isinstance(a, (FloorDiv, Mod)) or any(_divides(c) for c in a.children() if c is not a) for a, _ in e.terms
    )
