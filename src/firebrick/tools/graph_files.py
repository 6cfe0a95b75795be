"""Writes captured graphs as files by suffix, and opens them in a viewer."""

from __future__ import annotations

import importlib
import json
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import fx

from firebrick import trace
from firebrick.backends.onnx_graph import to_onnx
from firebrick.config import Config
from firebrick.errors import ConfigError, FirebrickError
from firebrick.fakes.node_values import origins
from firebrick.tools.graph_picture import to_html, to_svg
from firebrick.tools.graph_view import GraphView, show_view, view_graph
from firebrick.tools.subject import Captured, Graph


class Views:
    """The graphs of one captured target in every form."""

    def __init__(self, captured: Captured) -> None:
        self.captured = captured
        self.views = [view_graph(captured, graph) for graph in captured.graphs]

    def text(self) -> str:
        """All graphs as text, and the graph breaks."""
        parts = [show_view(view) for view in self.views]
        parts += [f"graph break at {b['place']}: {b['cause']}\n  fix: {b['fix']}" for b in self.captured.breaks()]
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        graphs = [view.to_dict() for view in self.views]
        return {"target": self.captured.target.name, "graphs": graphs, "breaks": self.captured.breaks()}

    def html(self) -> str:
        """One page."""
        return to_html(self.captured.target.name, self.views, self.captured.breaks())

    def write(self, path: Path) -> list[Path]:
        """Write a file of the suffix's kind; kinds that hold one graph get numbered files where there are several.

        Raises:
            ConfigError: no such kind, or the graph can't be written so.
        """
        check_suffix(path)
        make = SUFFIXES[path.suffix]
        if path.suffix in (".html", ".txt", ".json"):
            path.write_bytes(make(self, 0))
            return [path]
        several = len(self.views) > 1
        paths = [path.with_suffix(f".{i}{path.suffix}") if several else path for i in range(len(self.views))]
        for i, each in enumerate(paths):
            each.write_bytes(make(self, i))
        return paths


SUFFIXES: dict[str, Callable[[Views, int], bytes]] = {
    ".html": lambda views, _: views.html().encode(), ".svg": lambda views, i: to_svg(views.views[i]).encode(),
    ".onnx": lambda views, i: _onnx_bytes(views.captured.graphs[i], views.views[i]),
    ".txt": lambda views, _: f"{views.text()}\n".encode(),
    ".json": lambda views, _: json.dumps(views.to_dict(), indent=2).encode(),
}  # fmt: skip
"""What a file's name may end in -> its content for one of the graphs."""


def check_suffix(path: Path) -> None:
    """Refuse a file whose kind can't be written.

    Raises:
        ConfigError: no such kind.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"can't write {path.name}", fix=f"end the name in {', '.join(SUFFIXES)}")


def _onnx_bytes(graph: Graph, view: GraphView) -> bytes:
    """The graph as it was captured, in ONNX: nodes are named by module, with their kernel and place."""
    node_views = {node.id: node for node in view.nodes}

    def about(node: fx.Node) -> tuple[str, dict[str, str]]:
        sources = [node_views[i] for i in origins(node) if i in node_views]
        if not sources:
            return node.name, {}
        source = sources[-1]
        facts = {"place": source.place, "module": source.module, "firebrick": source.role, "aten": node.name}
        labels = [f"s{i} {view.steps[i].label}" for i in source.steps]
        facts |= {"step": "; ".join(labels)} if labels else {}
        facts |= {"rules": ", ".join(source.rules)} if source.rules else {}
        return "/".join([*source.module.split("."), source.name]).strip("/"), facts

    try:
        with torch.no_grad():
            aten = trace.trace_inference(graph.gm, graph.inputs, Config.from_env())
        data: bytes = to_onnx(aten.gm, view.name, foreign=True, about=about).SerializeToString()
    except FirebrickError as error:
        raise ConfigError(f"{view.name} can't be written as ONNX: {error.what}", fix=error.fix) from error
    except ValueError as error:  # protobuf's limit of 2 GiB
        raise ConfigError(f"{view.name} is too large for one ONNX file", fix="choose a part by --module") from error
    return data


def view_files(views: Views, *, browse: bool = True) -> str:
    """Open the first graph in Netron, served on localhost until Ctrl-C; without Netron, the page in the browser."""
    folder = Path(tempfile.mkdtemp(prefix="firebrick-graph-"))
    try:
        netron = importlib.import_module("netron")
    except ImportError:
        (page,) = views.write(folder / "graph.html")
        if browse:
            webbrowser.open(page.as_uri())
        return f"{page.as_uri()} (for Netron: pip install netron)"
    model = views.write(folder / "graph.onnx")[0]
    host, port = netron.start(str(model), ("localhost", 0), browse=browse)
    return f"http://{host}:{port}"


def wait_for_end() -> None:
    """Return when the user presses Ctrl-C."""
    with suppress(KeyboardInterrupt):
        threading.Event().wait()
