"""`firebrick report`: all that is known of a target's compile, in one place, as text, page or data."""

from __future__ import annotations

import difflib
import html
import itertools
import linecache
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import firebrick
from firebrick.api.settings import Settings
from firebrick.config import Config
from firebrick.ir.graph.labels import library_of
from firebrick.report import FirebrickWarning, recorder
from firebrick.tools import doctor
from firebrick.tools.graph_picture import to_svg
from firebrick.tools.graph_view import GraphView, view_graph
from firebrick.tools.subject import Captured, Target, capture, offered

Row = tuple[str, ...]

_MOST_PICTURES = 4
_THINNEST = 0.2
"""Bars of the timeline that would be thinner are left out."""
_KERNELS = "Kernels and library calls"


@dataclass(frozen=True, slots=True)
class Section:
    """A table. note: a line below it. opened: seen at once on the page, where it is short."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[Row]
    note: str = ""
    opened: bool = True


@dataclass(slots=True)
class Report:
    """What `firebrick report` shows. figures: what only the page has, as (title, HTML), some in a section's place."""

    target: str
    sections: list[Section] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return {"target": self.target, "sections": [asdict(section) for section in self.sections]}

    def show(self) -> RenderableType:
        """The report for a terminal."""
        parts: list[RenderableType] = []
        for section in self.sections:
            table = Table(title=section.title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
            one_graph = section.head[0] == "graph" and len({row[0] for row in section.rows}) == 1
            shown = range(one_graph and len(section.head) > 1, len(section.head))  # room for what tells rows apart
            for k in shown:
                right = k > 0 and _numbers(section.rows, k)
                justify: Literal["left", "right"] = "right" if right else "left"
                table.add_column(section.head[k], justify=justify, no_wrap=right, overflow="fold")
            for row in section.rows:
                table.add_row(*(Text(row[k]) for k in shown))
            parts += [table, *([Text(f"  {section.note}\n")] if section.note else [])]
        return Lines(*parts)

    def to_html(self) -> str:
        """A page that needs nothing else."""
        body = [f"<h1>{html.escape(self.target)}</h1>"]
        titles = [section.title for section in self.sections]
        folding = "<details open><summary>{}</summary>{}</details>"
        figures = {title: folding.format(html.escape(title), text) for title, text in self.figures if text}
        for section in self.sections:
            if section.title in figures:
                body.append(figures[section.title])
                continue
            head = "".join(f"<th>{html.escape(h)}</th>" for h in section.head)
            right = [k > 0 and _numbers(section.rows, k) for k in range(len(section.head))]
            rows = [
                "".join(f"<td{' class=n' if n else ''}>{html.escape(c)}</td>" for c, n in zip(row, right, strict=True))
                for row in section.rows
            ]
            table = (
                f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{r}</tr>' for r in rows)}</tbody></table>"
            )
            note = f"<p>{html.escape(section.note)}</p>" if section.note else ""
            opened = " open" if len(rows) <= 40 and section.opened else ""
            title = f"{html.escape(section.title)} <small>{len(rows)}</small>"
            body.append(f"<details{opened}><summary>{title}</summary>{table}{note}</details>")
            body += [text for t, text in figures.items() if t not in titles] if section is self.sections[0] else []
        return _PAGE.format(title=html.escape(self.target), body="\n".join(body))


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: firebrick report</title>
<style>
:root {{ color-scheme: light dark; --line: #d5dae2; --soft: #5c6675; }}
@media (prefers-color-scheme: dark) {{ :root {{ --line: #333b47; --soft: #97a1b0; }} body {{ background: #14171c; }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 24px auto; padding: 0 16px; }}
summary {{ font-weight: 600; cursor: pointer; padding: 10px 0 4px; }}
small, p, th {{ color: var(--soft); font-weight: 400; }}
table {{ border-collapse: collapse; font-size: 13px; }} td {{ overflow-wrap: break-word; }}
th, td {{ text-align: left; padding: 3px 16px 3px 0; border-bottom: 1px solid var(--line); vertical-align: top; }}
svg {{ max-width: 100%; height: auto; }} pre {{ font-size: 13px; margin: 4px 0 12px; overflow-x: auto; }}
.picture {{ overflow: auto; max-height: 480px; border: 1px solid var(--line); }} .picture svg {{ max-width: none; }}
mark {{ background: #f2c14e66; color: inherit; }} .why {{ margin: 0 0 2px; }}
td pre {{ margin: 0; white-space: pre-wrap; min-width: 40ch; }}
ins {{ background: #54a24b33; text-decoration: none; }} del {{ background: #e4575633; text-decoration: none; }}
.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
</style>
{body}
</html>
"""


def _numbers(rows: Sequence[Row], column: int) -> bool:
    """Whether a column holds numbers only, with their units."""
    cells = [row[column] for row in rows if row[column]]
    return bool(cells) and all(cell[0].isdigit() and len(cell) < 14 for cell in cells)


def make_report(target: Target, config: Config) -> Report:
    """Explain a target, compile it with an empty cache and again with a filled one, and put together what was seen."""
    explained = firebrick.explain(target)()
    captured = capture(target)
    with tempfile.TemporaryDirectory(prefix="firebrick-report-") as folder:
        runs = {name: _compile(target, Path(folder)) for name in ("empty cache", "filled cache")}
    out = Report(target.name)
    out.sections.append(_summary(explained, captured, runs))
    choices = [tuple(text.partition(": ")[::2]) for run in runs.values() for text in run.reasons.get("tuned", ())]
    out.sections += [_stages(runs), Section("Measured", ("part", "choice and times"), [*dict.fromkeys(choices)])]
    out.sections += _graphs(captured)
    frames = sorted(explained.frames, key=lambda frame: _installed(frame["place"]))
    out.sections += [_frames(frames), _recompiles(captured), _guards(frames)]
    out.figures.append(("Timeline", _timeline(runs)))
    breaks = dict.fromkeys(_in_source(row) for row in captured.breaks() if not _installed(row["place"]))
    out.figures += [("Breaks in your source", "".join(breaks))] if breaks else []
    views = [view_graph(captured, graph) for graph in captured.graphs]
    out.figures += [*_pictures(views), (_KERNELS, _kernels_in_source(views)), ("Recompiles", _as_diff(out.sections))]
    facts = [(f.name, f.value, "" if f.ok else f.fix) for f in doctor.examine(config)]
    out.sections.append(Section("Machine", ("what", "value", "to do"), facts))
    out.sections = [section for section in out.sections if section.rows]
    return out


def _frames(frames: list[dict[str, Any]]) -> Section:
    rows: list[Row] = []
    for frame in frames:
        guards = [g for g in frame["guards"] if " is " in g and "." not in g.partition(" is ")[0]]
        tensors = [g for g in guards if g.endswith((" cpu", " grad")) or " cuda:" in g]
        numbers = str(frame["ops"]), str(len(frame["guards"]))
        rows.append((frame["place"], frame["frame"], *numbers, "; ".join(tensors[:6])))
    return Section(
        "Frames", ("place", "frame", "ops", "guards", "on tensors"), rows, "`firebrick explain` lists all guards"
    )


def _recompiles(captured: Captured) -> Section:
    """What another capture of the same frame is guarded by that the one before was not."""
    rows: list[Row] = []
    place = lambda report: (report.file, report.line, report.name)  # noqa: E731
    for (file, line, name), reports in itertools.groupby(sorted(captured.reports, key=place), place):
        for before, after in itertools.pairwise([report.guards for report in reports]):
            changes = [text for text in difflib.ndiff(before, after) if text[0] in "+-"]
            rows += [(f"{file}:{line}", name, text) for text in changes]
    rows.sort(key=lambda row: _installed(row[0]))
    return Section("Recompiles", ("place", "frame", "guard"), rows, "- of the capture before, + of this one")


def _guards(frames: list[dict[str, Any]]) -> Section:
    rows = [(frame["place"], frame["frame"], str(guard)) for frame in frames for guard in frame["guards"]]
    return Section("Guards", ("place", "frame", "guard"), rows)


_COLOURS = (
    "#4c78a8 #f58518 #54a24b #e45756 #72b7b2 #b279a2 #9d755d #eeca3b #ff9da6 #bab0ac #2f4b7c #7a5195 #ffa600".split()
)


def _timeline(runs: dict[str, _Run]) -> str:
    """When which stage ran in each run, on one scale; what runs inside of another stage is drawn below it."""
    names = dict.fromkeys(_kind(name) for run in runs.values() for name in run.stages)
    colours = dict(zip(names, itertools.cycle(_COLOURS)))
    longest = max(run.seconds for run in runs.values()) or 1.0
    parts, y = [], 0
    for name, run in runs.items():
        parts.append(f'<text x="0" y="{y + 15}" fill="currentColor">{html.escape(name)}</text>')
        ends, deepest = list[float](), 0
        for stage, start, end in sorted(run.spans, key=lambda span: (span[1], -span[2])):
            while ends and ends[-1] <= start:
                ends.pop()
            wide = 860 * (end - start) / longest
            if wide >= _THINNEST:
                x, below = 110 + 860 * start / longest, 16 * len(ends)
                title = f"<title>{html.escape(stage)}: {1e3 * (end - start):.1f} ms</title>"
                place = f'x="{x:.1f}" y="{y + below}" width="{wide:.1f}" height="14"'
                parts.append(f'<rect {place} fill="{colours[_kind(stage)]}">{title}</rect>')
                deepest = max(deepest, len(ends))
            ends.append(end)
        x = 116 + 860 * run.seconds / longest
        parts.append(f'<text x="{x:.0f}" y="{y + 13}" fill="currentColor">{1e3 * run.seconds:.0f} ms</text>')
        y += 16 * deepest + 28
    shown = [n for n in names if any(860 * run.stages.get(n, 0.0) >= 2 * longest for run in runs.values())]
    legend = "".join(f'<span style="color:{colours[n]}">&#9632;</span> {html.escape(n)} &nbsp; ' for n in shown)
    return f'<svg viewBox="0 0 1060 {y}" font-size="13">{"".join(parts)}</svg><p>{legend}</p>'


def _kind(stage: str) -> str:
    """What a stage is called in the timeline: passes at each level, and each of them, are of one kind."""
    return "passes" if stage.startswith("pass") else stage


def _pictures(views: list[GraphView]) -> list[tuple[str, str]]:
    """The largest graphs as drawings."""
    largest = sorted(sorted(range(len(views)), key=lambda i: -len(views[i].nodes))[:_MOST_PICTURES])
    return [(f"Graph {i} {views[i].name}", f'<div class="picture">{to_svg(views[i])}</div>') for i in largest]


def _installed(place: str) -> bool:
    """Whether a place is in an installed package, not in the user's own code."""
    return "site-packages" in place


def _kernels_in_source(views: list[GraphView]) -> str:
    """Every step of every graph beside the lines that it computes."""
    rows = ["<table><thead><tr><th>graph</th><th>step</th><th>what</th><th>loops</th><th>source</th></tr></thead>"]
    for i, view in enumerate(views):
        places = {node.id: node.place for node in view.nodes if node.kind == "call" and node.place}
        for step in view.steps:
            lines = []
            for place in dict.fromkeys(places[n] for n in step.nodes if n in places):
                file, _, line = place.rpartition(":")
                lines.append(f"{Path(file).name}:{line}  {linecache.getline(file, int(line)).strip()}")
            cells = (str(i), f"s{step.id}", step.label, step.loops)
            source = f"<td><pre>{html.escape(chr(10).join(lines))}</pre></td>"
            rows.append(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}{source}</tr>")
    return "".join([*rows, "</table>"]) if len(rows) > 1 else ""


def _as_diff(sections: list[Section]) -> str:
    """The guards of each capture of a frame beside those of the one before."""
    rows = next(section.rows for section in sections if section.title == "Recompiles")
    parts = []
    for (place, frame), group in itertools.groupby(rows, lambda row: row[:2]):
        tags = [("ins" if text[0] == "+" else "del", html.escape(text)) for _, _, text in group]
        lines = "\n".join(f"<{tag}>{text}</{tag}>" for tag, text in tags)
        parts.append(f'<p class="why">{html.escape(f"{place} {frame}")}</p><pre>{lines}</pre>')
    return "".join(parts)


def _in_source(graph_break: dict[str, str]) -> str:
    """A break below the lines of the user's file that lead to it."""
    file, _, rest = graph_break["place"].partition(":")
    number = rest.split(" ")[0].split(":")[0]
    line = int(number) if number.isdigit() else 0
    rows = []
    for n in range(max(1, line - 3), line + 3):
        text = html.escape(f"{n:5}  {linecache.getline(file, n).rstrip()}")
        rows.append(f"<mark>{text}</mark>" if n == line else text)
    why = f"{html.escape(graph_break['cause'])}<br><small>fix: {html.escape(graph_break['fix'])}</small>"
    return f'<p class="why">{html.escape(graph_break["place"])}: {why}</p><pre>{chr(10).join(rows)}</pre>'


@dataclass(frozen=True, slots=True)
class _Run:
    """One call that compiled. seconds: of the whole; the rest is what the recorder says of it.

    spans: stage, start and end in seconds from the call's start.
    """

    seconds: float
    spans: list[tuple[str, float, float]]
    stages: dict[str, float]
    counts: dict[str, int]
    reasons: dict[str, dict[str, int]]
    warned: list[str]


def _compile(target: Target, folder: Path) -> _Run:
    recorder.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FirebrickWarning)
        start = time.perf_counter()
        with offered(Settings.make(options={"cache_dir": folder, "strict": False})):
            target()
        seconds = time.perf_counter() - start
    stats = recorder.stats()
    warned = [str(w.message) for w in caught if issubclass(w.category, FirebrickWarning)]
    spans = [(stage, a - start, b - start) for stage, a, b in recorder.spans]
    return _Run(seconds, spans, stats["seconds"], stats["counts"], stats["reasons"], warned)


def _summary(explained: Any, captured: Captured, runs: dict[str, _Run]) -> Section:
    cold, warm = runs.values()
    hits = warm.counts.get("cache hits", 0)
    steps = [step for g in captured.graphs if g.stages is not None for step in g.stages.schedule.steps]
    rows = [
        ("graphs", str(len(captured.graphs))),
        ("graph breaks", str(len(captured.breaks()))),
        ("ops captured", f"{explained.captured_ops} of {explained.ops} ({explained.coverage:.0f} %)"),
        ("of the time of ops", f"{explained.time_coverage:.0f} %"),
        ("first call, empty cache", f"{cold.seconds:.2f} s"),
        ("first call, filled cache", f"{warm.seconds:.2f} s"),
        ("graphs compiled", str(cold.counts.get("graphs compiled", 0))),
        ("cache hits, second time", f"{hits} of {hits + warm.counts.get('cache misses', 0)}"),
        ("kernels, each call", str(sum(not library_of(step) for step in steps))),
        ("library calls, each call", str(sum(bool(library_of(step)) for step in steps))),
    ]
    rows += [("recompiled because", f"{why} ({n})") for why, n in cold.reasons.get("recompile", {}).items()]
    rows += [("warning", text) for text in dict.fromkeys(cold.warned + warm.warned)]
    return Section("Summary", ("what", "value"), rows)


def _stages(runs: dict[str, _Run]) -> Section:
    """Each stage without those that run inside of it."""
    own = [defaultdict[str, float](float) for _ in runs]
    for seconds, run in zip(own, runs.values(), strict=True):
        outer: list[tuple[str, float]] = []
        for name, start, end in sorted(run.spans, key=lambda span: (span[1], -span[2])):
            while outer and outer[-1][1] <= start:
                outer.pop()
            if outer:
                seconds[outer[-1][0]] -= end - start
            seconds[_kind(name)] += end - start
            outer.append((_kind(name), end))
    names = sorted({*own[0], *own[-1]}, key=lambda name: -own[0][name])
    rows = [(name, *(f"{max(seconds[name], 0) * 1e3:.1f}" for seconds in own)) for name in names]
    return Section("Milliseconds by stage", ("stage", *runs), rows)


def _graphs(captured: Captured) -> list[Section]:
    steps, apart, rules, graphs = list[Row](), list[Row](), list[Row](), list[Row]()
    for i, graph in enumerate(captured.graphs):
        view = view_graph(captured, graph)
        roles = Counter(node.role for node in view.nodes if node.kind == "call")
        kinds = Counter(step.kind for step in view.steps)
        free = str(sum(roles[r] for r in ("view", "folded", "gone")))
        numbers = str(roles.total()), free, str(kinds["kernel"]), str(kinds["library"])
        graphs.append((f"{i} {view.name}", *numbers, view.failure or "compiled"))
        alike: dict[tuple[str, str, str, int], list[int]] = {}
        for step in view.steps:
            alike.setdefault((step.label, step.kind, step.loops, step.nbytes), []).append(step.id)
        for (label, kind, loops, nbytes), ids in alike.items():
            names = " ".join(f"s{k}" for k in ids[:2]) + (" ..." if len(ids) > 2 else "")
            shape = loops if kind == "kernel" else ""
            steps.append((str(i), names, label, kind, shape, str(len(ids)), f"{nbytes / 1024:.1f}"))
        apart += [
            (str(i), f"s{a} {view.steps[a].label}", f"s{b} {view.steps[b].label}", why) for a, b, why in view.apart
        ]
        for rule in view.rules:
            why = "; ".join(f"not at {n}: {text}" for text, n in list(rule.refused.items())[:2])
            rules.append((str(i), rule.name, "on" if rule.enabled else "off", str(len(rule.nodes)), why))
    breaks = list(dict.fromkeys((b["place"], b["cause"], b["fix"]) for b in captured.breaks()))
    breaks.sort(key=lambda row: _installed(row[0]))
    free = "calls that cost nothing: views, work done ahead, and what nothing is left of"
    return [
        Section("Graphs", ("graph", "calls", "free", "kernels", "library calls", "state"), graphs, f"free: {free}"),
        Section("Graph breaks", ("place", "cause", "fix"), breaks),
        Section(
            _KERNELS,
            ("graph", "step", "what", "kind", "loops", "times", "KiB"),
            steps,
            "KiB: read and written each time",
        ),
        Section("Not fused", ("graph", "step", "and step", "because"), apart),
        Section(
            "Rewrite rules with a place here",
            ("graph", "rule", "state", "matches", "refused"),
            rules,
            "",
            any(row[3] != "0" for row in rules),
        ),
    ]
