"""Pictures of captured graphs: a page that needs nothing else, and a drawing."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from firebrick.tools.graph_view import GraphView, Group, NodeView, group_nodes, layers_of

_MOST_BOXES = 400
_ROW = 8
"""Boxes beside each other in the drawing."""


def to_html(target: str, views: Sequence[GraphView], breaks: Sequence[dict[str, str]]) -> str:
    """A page that shows all graphs of a target; modules open and close."""
    trees = [_tree(group_nodes(view)) for view in views]
    graphs = [{**view.to_dict(), "tree": tree} for view, tree in zip(views, trees, strict=True)]
    data = json.dumps({"target": target, "graphs": graphs, "breaks": list(breaks)}, separators=(",", ":"))
    page = files("firebrick.tools").joinpath("graph.html").read_text("utf-8")
    return page.replace("@DATA@", data.replace("<", "\\u003c"))


def _tree(group: Group) -> dict[str, Any]:
    children = [_tree(c) if isinstance(c, Group) else {"node": c.id} for c in group.children]
    rows = [[children[k] for k in row] for row in layers_of(group.children)]
    return {"path": group.path, "title": group.title, "rows": rows}


# ---------------------------------------------------------------- the drawing

_STYLE = """
svg { background: #fff; font: 12px system-ui, sans-serif; } text { fill: #1b1f27; }
.soft { fill: #5c6675; font-size: 10px; }
.box { fill: #fff; stroke: #aab4c2; } .group { fill: #8090a8; fill-opacity: .08; stroke: #aab4c2; }
.view, .gone, .folded { stroke-dasharray: 4 3; } .library { stroke: #2f6fd0; stroke-width: 2; }
path { fill: none; stroke: #8a96a6; }
@media (prefers-color-scheme: dark) { svg { background: #14171c; } text { fill: #e6e9ee; } .soft { fill: #97a1b0; }
.box { fill: #1c2128; } }
"""


class _Box:
    """A node or a group with its size and, once placed, its corner."""

    def __init__(self, item: Group | NodeView, rows: list[list[_Box]]) -> None:
        self.item, self.rows = item, rows
        self.x = self.y = self.width = self.height = 0.0
        self.text = item.title if isinstance(item, Group) or not item.by else f"{item.title} ({item.by})"
        self.soft = f"{sum(1 for _ in item.leaves())} ops" if isinstance(item, Group) else item.type
        widest = max((sum(b.width for b in row) + 14 * (len(row) - 1) for row in rows), default=0.0)
        self.width = max(widest + 28, 7.2 * len(self.text) + 24, 0 if rows else 6.2 * len(self.soft) + 20)
        self.height = 30 + sum(max(b.height for b in row) + 26 for row in rows) if rows else 38.0

    def place(self, x: float, y: float) -> None:
        """Put it and what it holds."""
        self.x, self.y = x, y
        top = y + 34
        for row in self.rows:
            left = x + (self.width - sum(b.width for b in row) - 14 * (len(row) - 1)) / 2
            for box in row:
                box.place(left, top)
                left += box.width + 14
            top += max(b.height for b in row) + 26

    def walk(self) -> Iterator[_Box]:
        """This box and all inside."""
        yield self
        for row in self.rows:
            for box in row:
                yield from box.walk()


def _boxes(item: Group | NodeView, depth: int) -> _Box:
    """Lay out an item; groups deeper than `depth` stay closed."""
    if not isinstance(item, Group) or depth < 0:
        return _Box(item, [])
    children = [_boxes(child, depth - 1) for child in item.children]
    rows = [row[i : i + _ROW] for row in layers_of(item.children) for i in range(0, len(row), _ROW)]
    return _Box(item, [[children[k] for k in row] for row in rows])


def to_svg(view: GraphView) -> str:
    """A drawing of one graph; deep modules stay closed where it would get too large."""
    group, depth = group_nodes(view), 0
    top = _boxes(group, 0)
    while depth < 20:
        deeper = _boxes(group, depth + 1)
        if sum(1 for _ in deeper.walk()) > _MOST_BOXES:
            break
        top, depth = deeper, depth + 1
    top.place(8, 8)
    home: dict[int, _Box] = {}
    for box in top.walk():
        leaves = box.item.leaves() if isinstance(box.item, Group) and not box.rows else [box.item]
        home.update((n.id, box) for n in leaves if not isinstance(n, Group))
    edges = {(home[i], home[n.id]) for n in view.nodes for i in n.inputs if i in home and home[i] is not home[n.id]}
    cards = [b for b in top.walk() if not b.rows]
    lines = [_edge(a, b, cards) for a, b in sorted(edges, key=lambda e: (e[0].y, e[0].x, e[1].y, e[1].x))]
    groups = [b for b in top.walk() if b.rows]
    size = f'width="{top.width + 16:.0f}" height="{top.height + 16:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {top.width + 16:.0f} {top.height + 16:.0f}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *map(_shape, groups), *lines, *map(_shape, cards), "</svg>\n"])


def _edge(a: _Box, b: _Box, cards: Sequence[_Box]) -> str:
    """A curve, around the boxes that a straight line would cross."""
    x0, y0, x1, y1 = a.x + a.width / 2, a.y + a.height, b.x + b.width / 2, b.y
    crossed = [c for c in cards if y0 < c.y + c.height / 2 < y1 and c.x < max(x0, x1) and min(x0, x1) < c.x + c.width]
    if crossed:
        side = max(c.x + c.width for c in crossed) + 10 + len(crossed) % 4 * 5
        beside = [c for c in cards if y0 < c.y + c.height / 2 < y1]
        for _ in range(6):
            side = max([side, *(c.x + c.width + 10 for c in beside if c.x - 6 < side < c.x + c.width + 6)])
        curve = f"C{x0:.0f} {y0 + 22:.0f} {side:.0f} {y0:.0f} {side:.0f} {y0 + 40:.0f} V{y1 - 40:.0f}"
        return f'<path d="M{x0:.0f} {y0:.0f} {curve} C{side:.0f} {y1:.0f} {x1:.0f} {y1 - 22:.0f} {x1:.0f} {y1:.0f}"/>'
    bend = max(10.0, (y1 - y0) / 2)
    return f'<path d="M{x0:.0f} {y0:.0f} C{x0:.0f} {y0 + bend:.0f} {x1:.0f} {y1 - bend:.0f} {x1:.0f} {y1:.0f}"/>'


def _shape(box: _Box) -> str:
    item, place = box.item, f'x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" rx="7"'
    text = f'<text x="{box.x + 12:.0f}" y="{box.y + 17:.0f}">{html.escape(box.text)}</text>'
    if isinstance(item, Group):
        soft = "" if box.rows else f'<text class="soft" x="{box.x + 12:.0f}" y="{box.y + 31:.0f}">{box.soft}</text>'
        return f'<rect class="group" {place}/>{text}{soft}'
    fill = ""
    if item.role == "kernel":
        hue = (item.steps[0] * 137.5 % 290 + 255) % 360  # no blue: that is for library calls
        fill = f' style="stroke:hsl({hue:.0f} 65% 50%);fill:hsl({hue:.0f} 60% 50% / .18);stroke-width:2"'
    tip = "".join(f"\n{line}" for line in (item.text, item.module, item.place) if line)
    soft = f'<text class="soft" x="{box.x + 12:.0f}" y="{box.y + 31:.0f}">{html.escape(box.soft)}</text>'
    return (
        f'<g><title>{html.escape(item.name + tip)}</title><rect class="box {item.role}" {place}{fill}/>{text}{soft}</g>'
    )
