"""Unrelated parts of a program, one after the other.

A step of an optimizer does one op on all parameters, then the next op on all of them. What belongs to one parameter is
far apart there; brought together, it is one kernel.

    m0 = f(g0); m1 = f(g1); p0 = h(m0); p1 = h(m1)    ->    m0 = f(g0); p0 = h(m0); m1 = f(g1); p1 = h(m1)
"""

from __future__ import annotations

from collections.abc import Sequence

from firebrick.fuse.dependencies import analyze, dependencies
from firebrick.ir.loops.program import Nest, Node


def part_by_part(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, those that depend on each other brought together; library calls keep the order of all."""
    if not all(isinstance(node, Nest) for node in nodes):
        return list(nodes)
    root = list(range(len(nodes)))

    def find(k: int) -> int:
        while root[k] != k:
            root[k] = root[root[k]]
            k = root[k]
        return k

    for k, needs in enumerate(dependencies(analyze(nodes))):
        for other in needs:
            a, b = find(other), find(k)
            root[max(a, b)] = min(a, b)
    return [nodes[k] for k in sorted(range(len(nodes)), key=lambda k: (find(k), k))]
