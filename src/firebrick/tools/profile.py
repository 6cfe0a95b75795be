"""`firebrick profile`: where time and memory of a call go, eager beside compiled, against what the machine reaches."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

import firebrick
from firebrick.extend.labels import is_silent, library_of, step_labels
from firebrick.tools.costs import Cost, CostMode, node_flops, peak_bytes, step_bytes
from firebrick.tools.target import Captured, Target, capture, dotted_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

__all__ = ["Ceilings", "ModuleRow", "Profile", "Row", "ceilings", "profile_target", "tables"]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this machine reaches: GFLOP/s of a 1024^3 f32 matmul, GB/s (read and written) of a 64 MiB copy."""

    gflops: float
    gbytes: float


@dataclass(frozen=True, slots=True)
class Row:
    """One op, kernel or library call. Of one call of the target: ms, KiB allocated; GFLOP/s and GB/s as achieved."""

    name: str
    where: str
    calls: float
    ms: float
    share: float
    kib: float = 0.0
    gflops: float = 0.0
    gbytes: float = 0.0


@dataclass(slots=True)
class ModuleRow:
    """All modules of a class, children included, so that nested classes overlap. Times in ms a call of the target."""

    name: str
    calls: float = 0.0
    eager_ms: float = 0.0
    compiled_ms: float = 0.0


@dataclass(slots=True)
class Profile:
    """Rows by time, of the eager and of the compiled call. mib: memory for intermediate results, at most."""

    target: str
    ceilings: Ceilings
    eager_ms: float = 0.0
    compiled_ms: float = 0.0
    eager_mib: float = 0.0
    compiled_mib: float = 0.0
    eager_ops: list[Row] = field(default_factory=list)
    compiled_ops: list[Row] = field(default_factory=list)
    modules: list[ModuleRow] = field(default_factory=list)
    breaks: list[dict[str, str]] = field(default_factory=list)


def _best(call: Callable[[], Any], runs: int = 7) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def ceilings() -> Ceilings:
    """Measure the machine."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    source, target = torch.randn(2**24), torch.empty(2**24)
    return Ceilings(2 * 1024**3 / _best(lambda: a @ b) / 1e9, 2 * 2**26 / _best(lambda: target.copy_(source)) / 1e9)


def _trace(call: Callable[[], Any], runs: int, costs: Mapping[str, Cost], path: Path | None) -> list[Row]:
    """Rows of the outermost ops that `costs` names, children included, and one for the rest."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        for _ in range(runs):
            call()
    if path is not None:
        found.export_chrome_trace(str(path))
    spent, counts, kib = defaultdict[str, float](float), Counter[str](), defaultdict[str, float](float)
    whole = 0.0
    for event in found.events():
        whole += event.self_cpu_time_total
        if event.name not in costs or _inside(event, costs):
            continue
        spent[event.name] += event.cpu_time_total / 1e6
        counts[event.name] += 1
        kib[event.name] += max(event.cpu_memory_usage, 0) / 1024
    rows = []
    for name, seconds in spent.items():
        cost, times = costs[name], counts[name] / max(costs[name].calls, 1)
        text, _, where = name.rpartition(" ") if ".py:" in name else (name, "", "")
        speeds = (times * cost.flops / seconds / 1e9, times * cost.nbytes / seconds / 1e9) if seconds else (0.0, 0.0)
        rows.append(
            Row(
                text, where, counts[name] / runs, seconds / runs * 1e3, seconds * 1e6 / whole, kib[name] / runs, *speeds
            )
        )
    rest = whole / 1e6 - sum(spent.values())
    if rest > 0.001 * whole / 1e6:
        rows.append(Row("dispatch and what has no row", "", 0, rest / runs * 1e3, rest * 1e6 / whole))
    return sorted(rows, key=lambda row: -row.ms)


def _inside(event: Any, costs: Mapping[str, Cost]) -> bool:
    parent = event.cpu_parent
    while parent is not None and parent.name not in costs:
        parent = parent.cpu_parent
    return parent is not None


def _steps(found: Captured) -> Iterator[tuple[str, Cost, list[str]]]:
    """Of each kernel and library call of the captured graphs: label, cost, and the modules whose nodes it computes."""
    names = dotted_names(found.target.root)
    for graph in found.graphs:
        if graph.stages is None:
            continue
        schedule, nodes = graph.stages.schedule, list(graph.gm.graph.nodes)
        flops, sizes = node_flops(graph.gm, graph.inputs), step_bytes(schedule)
        users = Counter(p for step in schedule.steps for p in step.parts)
        labels = step_labels(graph.gm.graph, [(s.parts, library_of(s)) for s in schedule.steps])
        for step, label, nbytes in zip(schedule.steps, labels, sizes, strict=True):
            work = [p for p in step.parts if not is_silent(nodes[p])] or list(step.parts)
            modules = [names.get(nodes[p].meta.get("module", ""), "") for p in work]
            yield label, Cost(1, sum(flops[p] // users[p] for p in step.parts), nbytes), modules


def _modules(root: torch.nn.Module, call: Callable[[], Any], runs: int) -> dict[str, ModuleRow]:
    """Wall time by module class."""
    rows: dict[str, ModuleRow] = {}
    starts: list[float] = []

    def enter(module: torch.nn.Module, args: Any) -> None:
        starts.append(time.perf_counter())

    def leave(module: torch.nn.Module, args: Any, result: Any) -> None:
        row = rows.setdefault(type(module).__name__, ModuleRow(type(module).__name__))
        row.eager_ms += (time.perf_counter() - starts.pop()) / runs * 1e3
        row.calls += 1 / runs

    with ExitStack() as hooks:
        for module in root.modules():
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.register_forward_hook(leave))
        for _ in range(runs):
            call()
    return rows


def _compiled_modules(root: torch.nn.Module, found: Captured, ops: list[Row], rows: dict[str, ModuleRow]) -> None:
    """Give each module its part of the steps that compute its nodes."""
    each = {f"{row.name} {row.where}".strip(): row.ms / row.calls for row in ops if row.calls}
    kinds = {name: type(module).__name__ for name, module in root.named_modules()}
    for label, _, modules in _steps(found):
        for path in modules:
            parts = path.split(".") if path else []
            above = {".".join(parts[:n]) for n in range(len(parts) + 1)}
            for kind in {kinds[p] for p in above if p in kinds} & rows.keys():
                rows[kind].compiled_ms += each.get(label, 0.0) / len(modules)


def profile_target(target: Target, *, runs: int = 5, trace: Path | None = None) -> Profile:
    """Profile a target eagerly and compiled. A script runs once each way, once more before, and counts whole.

    trace: a Chrome trace of the compiled call is written here, and one of the eager call beside it (`.eager`).
    """
    out, runs = Profile(target.name, ceilings()), 1 if target.script else runs
    compiled = target.fn if target.script else firebrick.compile(target.fn)

    def compiled_call() -> Any:
        if not target.script:
            return Target(target.name, compiled, target.args, target.kwargs)()
        with firebrick.optimize():
            return target()

    with CostMode() as mode:
        target()
    found = capture(target)
    compiled_call(), compiled_call()
    out.eager_ms, out.compiled_ms = _best(target, runs) * 1e3, _best(compiled_call, runs) * 1e3
    eager_trace = trace.with_suffix(".eager" + trace.suffix) if trace else None
    out.eager_ops = _trace(target, runs, mode.costs, eager_trace)
    costs: dict[str, Cost] = defaultdict(Cost, {} if target.root is not None and not found.breaks() else mode.costs)
    for label, cost, _ in _steps(found):
        known = costs[label]
        known.calls, known.flops, known.nbytes = (known.calls + 1, known.flops + cost.flops, known.nbytes + cost.nbytes)
    out.compiled_ops = _trace(compiled_call, runs, costs, trace)
    if target.root is not None:
        rows = _modules(target.root, target, runs)
        _compiled_modules(target.root, found, out.compiled_ops, rows)
        out.modules = sorted(rows.values(), key=lambda row: -row.eager_ms)
    out.eager_mib = mode.peak / 2**20
    schedules = [g.stages.schedule for g in found.graphs if g.stages is not None]
    out.compiled_mib = max(map(peak_bytes, schedules), default=0) / 2**20
    out.breaks = found.breaks()
    return out


_WIDE = 130
"""Columns of text from which the whole path and the memory are shown."""
_BELIEVED = 3
"""Times the ceiling from which a rate is left out: the compiled kernel does not do the work that the ops would."""


def _op_table(title: str, rows: list[Row], found: Ceilings, top: int, width: int) -> Table:
    wide, places = width >= _WIDE, any(row.where for row in rows)
    out = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    out.add_column("name", no_wrap=True, overflow="ellipsis", max_width=44 if wide else 24 if places else 37)
    if places:
        out.add_column("where", no_wrap=True, overflow="ellipsis", max_width=34 if wide else 21)
    widths = {"calls": 5, "ms": 7, "share": 5, "KiB": 7, "GFLOP/s": 8, "GB/s": 8}
    heads = [h for h in widths if wide or not (h == "KiB" or (h == "share" and places))]
    for head in heads:
        out.add_column(head, justify="right", no_wrap=True, min_width=widths[head])
    for row in rows[:top]:
        rates = (row.gflops, found.gflops), (row.gbytes, found.gbytes)
        speeds = [f"{rate:.0f} {rate / limit:4.0%}" if 0 < rate < _BELIEVED * limit else "" for rate, limit in rates]
        cells = {
            "calls": f"{row.calls:g}" if row.calls else "",
            "ms": f"{row.ms:.3f}",
            "share": f"{row.share:.1%}",
            "KiB": f"{row.kib:.0f}" if row.kib else "",
            "GFLOP/s": speeds[0],
            "GB/s": speeds[1],
        }
        where = [row.where if wide else row.where.rpartition("/")[2]] if places else []
        out.add_row(row.name, *where, *(cells[h] for h in heads))
    return out


def _module_table(rows: list[ModuleRow], top: int) -> Table:
    out = Table(title="modules, children included", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for head in ("module", "calls", "eager ms", "compiled ms", "times faster"):
        out.add_column(head, justify="left" if head == "module" else "right", no_wrap=True)
    for row in rows[:top]:
        faster = f"{row.eager_ms / row.compiled_ms:.2f}" if row.compiled_ms > 1e-3 else ""
        compiled = f"{row.compiled_ms:.3f}" if row.compiled_ms else ""
        out.add_row(row.name, f"{row.calls:g}", f"{row.eager_ms:.3f}", compiled, faster)
    return out


def tables(found: Profile, top: int = 15, width: int = _WIDE) -> list[Table]:
    """Return the tables to print, `width` columns wide: eager ops, modules, compiled kernels and library calls."""
    limits = found.ceilings
    speedup = found.eager_ms / found.compiled_ms
    eager = f"{found.target}, eager: {found.eager_ms:.2f} ms a call, {found.eager_mib:.1f} MiB of results at most"
    compiled = f"{found.target}, compiled: {found.compiled_ms:.2f} ms a call, {speedup:.2f} times as fast, "
    out = [_op_table(eager, found.eager_ops, limits, top, width)]
    if found.modules:
        out.append(_module_table(found.modules, top))
    out.append(_op_table(f"{compiled}{found.compiled_mib:.1f} MiB", found.compiled_ops, limits, top, width))
    reached = f"{limits.gflops:.0f} GFLOP/s in matmul, {limits.gbytes:.1f} GB/s in copy"
    out[-1].caption = f"%: of what this machine reaches, {reached}"
    return out
