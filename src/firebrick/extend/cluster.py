"""Convex clusters of a directed acyclic graph, on plain integers.

A set of nodes can become one node only if no path leaves it and comes back. Two steps keep that true: nodes are
first grouped by level, where a level ends whenever a path passes through a node that is not wanted, which costs one
walk over the edges; then neighbouring groups are united while reachability shows that no cycle comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence


def grow_clusters(inputs: Sequence[Sequence[int]], owner: list[int], wanted: Sequence[bool]) -> list[list[int]]:
    """Group the wanted clusters into maximal connected convex groups.

    Args:
        inputs: for each node the nodes that it reads; they come earlier in some topological order.
        owner: for each node its cluster, named by one of the cluster's nodes; clusters are convex and their quotient
            graph is acyclic. It is updated to the new groups.
        wanted: for each node whether it may be grouped; equal within a cluster.

    Returns:
        The groups as lists of nodes in ascending order.
    """
    quotient = _Quotient(inputs, owner)
    order = quotient.topological()
    level: dict[int, int] = {}
    for c in order:
        rises = [level[p] + (wanted[c] and not wanted[p]) for p in quotient.before[c]]
        level[c] = max(rises, default=0)
    for c in order:
        if wanted[c]:
            for p in list(quotient.before[quotient.find(c)]):
                if wanted[p] and level[p] == level[c] and quotient.find(p) != quotient.find(c):
                    quotient.unite(p, c)
    _unite_neighbours(quotient, wanted)
    groups: dict[int, list[int]] = {}
    for node in range(len(owner)):
        owner[node] = quotient.find(owner[node])
        if wanted[node]:
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


def _unite_neighbours(quotient: _Quotient, wanted: Sequence[bool]) -> None:
    """Unite groups joined by an edge where no other path joins them."""
    order = quotient.topological()
    bit = {c: 1 << i for i, c in enumerate(order)}
    reach: dict[int, int] = {}
    for c in reversed(order):
        mask = 0
        for s in quotient.after[c]:
            mask |= reach[s] | bit[s]
        reach[c] = mask
    work = [c for c in order if wanted[c]]
    while work:
        a = work.pop()
        if quotient.parent[a] != a:
            continue
        for b in sorted(quotient.after[a]):
            if not wanted[b] or any(reach[s] & bit[b] for s in quotient.after[a] if s != b):
                continue
            both, joined = bit[a] | bit[b], (reach[a] | reach[b]) & ~(bit[a] | bit[b])
            kept = quotient.unite(a, b)
            gone = b if kept == a else a
            del reach[gone], bit[gone]
            reach[kept] = joined
            bit[kept] = both
            for c, mask in reach.items():
                if c != kept and mask & both:
                    reach[c] = mask | both | joined
            work += [p for p in quotient.before[kept] if wanted[p]]
            work.append(kept)
            break
