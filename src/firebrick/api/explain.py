"""`explain`: what became of one call, as text, data and a page."""

from __future__ import annotations

import html
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from firebrick.api.compile import compiled_settings, original_callable
from firebrick.api.settings import Settings
from firebrick.capture import hook

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import fx

    from firebrick.capture.frame import FrameReport

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class GraphFacts:
    """One captured graph. ops: calls in it. seconds: how long it ran."""

    name: str
    ops: int
    seconds: float
    text: str


@dataclass(frozen=True)
class Explanation:
    """What capture made of one call.

    frames, breaks: what capture reported of each frame. ops, captured_ops: calls of ATen kernels in all, and
    inside of graphs. seconds, captured_seconds: likewise. result: what the call returned.
    """

    graphs: list[GraphFacts]
    frames: list[dict[str, Any]]
    breaks: list[dict[str, Any]]
    ops: int
    captured_ops: int
    seconds: float
    captured_seconds: float
    result: Any = field(default=None, repr=False, compare=False)

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
            "graphs": [asdict(g) for g in self.graphs],
            "graph_count": len(self.graphs),
            "break_count": len(self.breaks),
            "frames": self.frames,
            "breaks": self.breaks,
            "ops": self.ops,
            "captured_ops": self.captured_ops,
            "coverage_percent": self.coverage,
            "time_coverage_percent": self.time_coverage,
        }

    def __str__(self) -> str:
        lines = [
            f"{_count(len(self.graphs), 'graph')}, {_count(len(self.breaks), 'graph break')}",
            f"captured: {self.captured_ops} of {self.ops} ops ({self.coverage:.0f} %), "
            f"{self.time_coverage:.0f} % of their time",
        ]
        for i, graph in enumerate(self.graphs):
            lines.append(f"graph {i} {graph.name}: {_count(graph.ops, 'op')}")
        for event in self.breaks:
            lines.append(f"break {event['place']}: {event['cause']}")
            lines.append(f"  fix: {event['fix']}")
        for frame in self.frames:
            lines.append(f"frame {frame['frame']} {frame['place']}")
            lines += [f"  guard {guard}" for guard in frame["guards"]]
        return "\n".join(lines)

    def to_html(self, path: str | Path) -> None:
        """Write a page that needs nothing else."""
        sections = [("Summary", str(self)), *((f"Graph {i}: {g.name}", g.text) for i, g in enumerate(self.graphs))]
        body = "\n".join(f"<h2>{html.escape(title)}</h2>\n<pre>{html.escape(text)}</pre>" for title, text in sections)
        page = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>firebrick explain</title>\n{body}\n</html>\n'
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


class _Meter(TorchDispatchMode):
    """Counts and times the kernels of a call, in graphs and outside."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.ops = self.captured_ops = 0
        self.seconds = self.captured_seconds = 0.0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import torch._dynamo at the first op

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        spent = time.perf_counter() - start
        self.ops += 1
        self.seconds += spent
        if self.inside:
            self.captured_ops += 1
            self.captured_seconds += spent
        return result


class _Watch:
    """The backend of an explained call: runs each graph eagerly and measures it."""

    def __init__(self, meter: _Meter) -> None:
        self.meter = meter
        self.graphs: list[tuple[fx.GraphModule, list[float]]] = []

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        spent: list[float] = []
        self.graphs.append((gm, spent))

        def measured(*inputs: Any) -> Any:
            start = time.perf_counter()
            outer, self.meter.inside = self.meter.inside, True
            try:
                return gm.forward(*inputs)
            finally:
                self.meter.inside = outer
                spent.append(time.perf_counter() - start)

        return measured

    def facts(self) -> list[GraphFacts]:
        """Describe the graphs."""
        return [
            GraphFacts(
                str(gm.meta.get("name") or "graph"),
                sum(n.op.startswith("call") for n in gm.graph.nodes),
                sum(spent),
                str(gm.graph).strip(),
            )
            for gm, spent in self.graphs
        ]


def _frame_facts(report: FrameReport) -> dict[str, Any]:
    return {
        "frame": report.name,
        "place": f"{report.file}:{report.line}",
        "ops": report.op_count,
        "guards": list(report.guards),
        "recompiled_because": report.recompile,
    }


def _break_facts(report: FrameReport) -> dict[str, Any]:
    found = report.break_
    assert found is not None
    error = found.unsupported()
    return {
        "frame": report.name,
        "place": str(error.where or f"{report.file}:{report.line}"),
        "cause": str(found),
        "number": found.kind.number,
        "name": found.kind.name,
        "fix": found.kind.fix,
    }


def explain(fn: Any) -> Callable[..., Explanation]:
    """Return a function that calls `fn` once, captured anew, and reports graphs, breaks, guards and coverage.

    Graphs run on eager kernels, nothing is generated.
    """
    settings = compiled_settings(fn)
    original = original_callable(fn)

    def explained(*args: Any, **kwargs: Any) -> Explanation:
        meter = _Meter()
        watch = _Watch(meter)
        given = settings or Settings()
        mine = Settings.make(watch, None, False, given.dynamic, None, ())
        reports: list[FrameReport] = []
        with hook.installed(mine.capturer(reports.append), object()), meter:
            result = original(*args, **kwargs)
        return Explanation(
            graphs=watch.facts(),
            frames=[_frame_facts(report) for report in reports],
            breaks=[_break_facts(report) for report in reports if report.break_ is not None],
            ops=meter.ops,
            captured_ops=meter.captured_ops,
            seconds=meter.seconds,
            captured_seconds=meter.captured_seconds,
            result=result,
        )

    return explained
