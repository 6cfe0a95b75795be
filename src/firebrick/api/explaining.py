"""`explain`: what became of one call, as text, data and a page."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import fx
from torch.autograd import profiler_legacy  # the other profiler writes two lines to stderr each time
from torch.profiler import record_function

from firebrick.api.compiling import compiled_settings, original_callable
from firebrick.api.settings import Settings
from firebrick.api.switches import OUTER, Switch
from firebrick.capture import hook
from firebrick.capture.frame import FrameReport
from firebrick.config import Config
from firebrick.fakes.segments import Segments, of_data, segments
from firebrick.report import recorder
from firebrick.trace import bytes_saved, show_nodes


@dataclass(frozen=True)
class GraphFacts:
    """One captured graph. ops: calls in it. seconds: how long it ran. saved_bytes: kept for the backward, if any;
    None where data decide how many. offloaded_bytes: of these, on the CPU in place of a GPU; offloaded: tensors."""

    name: str
    ops: int
    seconds: float
    text: str
    saved_bytes: int | None = None
    offloaded_bytes: int = 0
    offloaded: int = 0


@dataclass(frozen=True)
class Explanation:
    """What capture made of one call.

    frames, breaks: what capture reported of each frame. ops, captured_ops: calls of ATen kernels in all, and
    inside of graphs. seconds, captured_seconds: likewise. result: what the call returned. choices: among kernels and
    library calls, as this process has measured them so far, for whatever it compiled.
    """

    graphs: list[GraphFacts]
    frames: list[dict[str, Any]]
    breaks: list[dict[str, Any]]
    ops: int
    captured_ops: int
    seconds: float
    captured_seconds: float
    result: Any = field(default=None, repr=False, compare=False)
    choices: list[str] = field(default_factory=list)

    @property
    def coverage(self) -> float:
        """Captured share of the ops, in %."""
        return 100.0 * self.captured_ops / self.ops if self.ops else 100.0

    @property
    def time_coverage(self) -> float:
        """Captured share of the time spent in ops, in %."""
        return 100.0 * self.captured_seconds / self.seconds if self.seconds else 100.0

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-able data."""
        return {
            "graphs": [asdict(g) for g in self.graphs], "graph_count": len(self.graphs),
            "break_count": len(self.breaks), "frames": self.frames, "breaks": self.breaks, "ops": self.ops,
            "captured_ops": self.captured_ops, "coverage_percent": self.coverage,
            "time_coverage_percent": self.time_coverage, "choices": self.choices,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"{count(len(self.graphs), 'graph')}, {count(len(self.breaks), 'graph break')}",
            f"captured: {self.captured_ops} of {self.ops} ops ({self.coverage:.0f} %), "
            f"{self.time_coverage:.0f} % of their time",
        ]
        for i, graph in enumerate(self.graphs):
            saved = f", {count(graph.saved_bytes or 0, 'byte')} saved for the backward"
            if graph.offloaded:
                saved += f", {graph.offloaded_bytes} of them on the CPU in {count(graph.offloaded, 'tensor')}"
            lines.append(f"graph {i} {graph.name}: {count(graph.ops, 'op')}{saved * (graph.saved_bytes is not None)}")
        lines += [f"measured {choice}" for choice in self.choices]
        for event in self.breaks:
            lines.append(f"break {event['place']}: {event['cause']}")
            lines.append(f"  fix: {event['fix']}")
        for frame in self.frames:
            lines.append(f"frame {frame['frame']} {frame['place']}")
            lines += [f"  guard {guard}" for guard in _foremost(frame["guards"])]
            if (more := len(frame["guards"]) - _MOST_GUARDS) > 0:
                lines.append(f"  and {more} guards more on code, classes and modules: to_dict() has all")
        return "\n".join(lines)

    def to_html(self, path: str | Path) -> None:
        """Write a page that needs nothing else."""
        sections = [("Summary", str(self)), *((f"Graph {i}: {g.name}", g.text) for i, g in enumerate(self.graphs))]
        body = "\n".join(f"<h2>{html.escape(title)}</h2>\n<pre>{html.escape(text)}</pre>" for title, text in sections)
        head = '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>firebrick explain</title>'
        Path(path).write_text(f"{head}\n{body}\n</html>\n", encoding="utf-8")


_MOST_GUARDS = 24
"""Guards of a frame that are printed."""


def _foremost(guards: Sequence[str]) -> Sequence[str]:
    """Where there are many, those on tensors and values: they are what recompiles."""
    if len(guards) <= _MOST_GUARDS:
        return guards
    return sorted(guards, key=lambda guard: ": " not in guard and " == " not in guard)[:_MOST_GUARDS]


def count(n: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


_CAPTURE, _GRAPH = "firebrick.capture", "firebrick.graph"


class _Watch:
    """The backend of an explained call: runs each graph eagerly, under a name that the profiler shows."""

    takes_symbols = checks_data = True

    def __init__(self, config: Config) -> None:
        self.config = config
        self.graphs: list[tuple[fx.GraphModule, list[float], tuple[int, ...]]] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        spent: list[float] = []
        saved = () if of_data(gm) else bytes_saved(gm, example_inputs, self.config)
        self.graphs.append((gm, spent, saved))
        run = _on_eager_kernels(gm)

        def measured(*inputs: Any) -> Any:
            start = time.perf_counter()
            with record_function(_GRAPH):
                result = run(*inputs)
            spent.append(time.perf_counter() - start)
            return result

        return measured

    def facts(self) -> list[GraphFacts]:
        """Describe the graphs."""
        calls = [sum(n.op.startswith("call") for n in gm.graph.nodes) for gm, *_ in self.graphs]
        return [
            GraphFacts(str(gm.meta.get("name") or "graph"), count, sum(spent), show_nodes(gm.graph), *saved)
            for count, (gm, spent, saved) in zip(calls, self.graphs, strict=True)
        ]


def _on_eager_kernels(gm: fx.GraphModule) -> Callable[..., Any]:
    """The graph as it was captured; where data decide sizes, each call looks whether they are as they were taken."""
    parts = segments(gm) if of_data(gm) else []
    forwards = [None if part.graph is None else part.graph.forward for part in parts]
    return Segments(gm, parts, forwards) if parts else gm.forward


def _shares(profiler: Any) -> tuple[int, int, float, float]:
    """Return (ops, captured ops, seconds, captured seconds) of the outermost kernels; those of captures don't count."""
    spent: list[tuple[bool, float]] = []
    for event in profiler.function_events:
        if not event.name.startswith(("aten::", "mkldnn::")):
            continue
        parent, inside = event.cpu_parent, False
        while parent is not None and not parent.name.startswith(("aten::", _CAPTURE)):
            inside = inside or parent.name == _GRAPH
            parent = parent.cpu_parent
        if parent is None:
            spent.append((inside, event.time_range.elapsed_us() / 1e6))
    captured = [seconds for inside, seconds in spent if inside]
    return len(spent), len(captured), sum(seconds for _, seconds in spent), sum(captured)


def _frame_facts(report: FrameReport) -> dict[str, Any]:
    return {
        "frame": report.name, "place": f"{report.file}:{report.line}", "ops": report.op_count,
        "guards": list(report.guards), "recompiled_because": report.recompile,
    }  # fmt: skip


def _break_facts(report: FrameReport) -> dict[str, Any]:
    graph_break = report.break_
    assert graph_break is not None
    error = graph_break.unsupported()
    return {
        "frame": report.name, "place": str(error.where or f"{report.file}:{report.line}"), "cause": str(graph_break),
        "number": graph_break.kind.number, "name": graph_break.kind.name, "fix": graph_break.kind.fix,
    }  # fmt: skip


def explain(fn: Any) -> Callable[..., Explanation]:
    """Return a function that calls `fn` once, captured anew, and reports graphs, breaks, guards and coverage.

    Graphs run on eager kernels, nothing is generated. Functions in it that are compiled already are captured with it.
    """
    settings = compiled_settings(fn)
    original = original_callable(fn)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        current = settings or Settings()
        watch = _Watch(current.config)
        reports: list[FrameReport] = []
        scope = object()
        capturer = Settings.make(watch, dynamic=current.dynamic).capturer(scope, reports.append)

        def watched(frame: Any) -> Any:
            with record_function(_CAPTURE):
                return capturer(frame)

        with Switch(OUTER), profiler_legacy.profile() as profiler, hook.installed(watched, scope):
            result = original(*args, **kwargs)
        breaks = [_break_facts(report) for report in reports if report.break_ is not None]
        frames, choices = [*map(_frame_facts, reports)], [*recorder.stats()["reasons"].get("tuned", ())]
        return Explanation(watch.facts(), frames, breaks, *_shares(profiler), result, choices)

    return explained
