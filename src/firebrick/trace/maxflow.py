"""Maximum flow by blocking flows, and the minimum cut that lies nearest to the sink."""

from __future__ import annotations

from collections import deque

INFINITE = 1 << 62


class Network:
    """A directed graph with capacities; nodes are numbers, 0 the source and 1 the sink."""

    def __init__(self) -> None:
        self._to: list[int] = []
        self._room: list[int] = []  # edge i's reverse is edge i ^ 1
        self._out: list[list[int]] = [[], []]

    def node(self) -> int:
        """Add a node."""
        self._out.append([])
        return len(self._out) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge."""
        for a, b, room in ((start, end, capacity), (end, start, 0)):
            self._out[a].append(len(self._to))
            self._to.append(b)
            self._room.append(room)

    def sink_side(self) -> set[int]:
        """Return the nodes from which the sink can still be reached when the flow is at its maximum."""
        while (depth := self._depths())[1] >= 0:
            self._block(depth)
        reached, queue = {1}, deque([1])
        while queue:
            for edge in self._out[queue.popleft()]:
                start = self._to[edge]
                if self._room[edge ^ 1] and start not in reached:
                    reached.add(start)
                    queue.append(start)
        return reached

    def _depths(self) -> list[int]:
        depth = [-1] * len(self._out)
        depth[0] = 0
        queue = deque([0])
        while queue:
            node = queue.popleft()
            for edge in self._out[node]:
                end = self._to[edge]
                if self._room[edge] and depth[end] < 0:
                    depth[end] = depth[node] + 1
                    queue.append(end)
        return depth

    def _block(self, depth: list[int]) -> None:
        """Push flow along shortest paths until each has a full edge."""
        tried = [0] * len(self._out)
        path: list[int] = []
        node = 0
        while True:
            if node == 1:
                amount = min(self._room[e] for e in path)
                for e in path:
                    self._room[e] -= amount
                    self._room[e ^ 1] += amount
                first = next(i for i, e in enumerate(path) if not self._room[e])
                node = self._to[path[first] ^ 1]
                del path[first:]
                continue
            edges = self._out[node]
            while tried[node] < len(edges):
                edge = edges[tried[node]]
                if self._room[edge] and depth[self._to[edge]] == depth[node] + 1:
                    path.append(edge)
                    node = self._to[edge]
                    break
                tried[node] += 1
            else:
                if not path:
                    return
                node = self._to[path.pop() ^ 1]
                tried[node] += 1
