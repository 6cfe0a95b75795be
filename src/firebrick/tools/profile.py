"""`firebrick profile`: where time and memory of a call go, eager beside compiled, against what the machine reaches."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

import firebrick
from firebrick.ir.graph.calls import tensors_in
from firebrick.ir.graph.labels import is_silent, library_of, step_labels
from firebrick.tools.costs import Cost, CostMode, node_flops, peak_bytes, step_bytes
from firebrick.tools.subject import Captured, Target, capture, dotted_names


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this machine reaches: GFLOP/s of a 1024^3 f32 matmul, GB/s (read and written) of a 64 MiB copy; of a GPU,
    where `gpu` names one, of an 8192^3 bf16 matmul and of a 512 MiB copy."""

    gflops: float
    gbytes: float
    gpu: str = ""


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
    """Rows by time, of the eager and of the compiled call. mib: memory for intermediate results, at most.

    ms: the fastest call alone; profiled_ms: the mean of the calls under the profiler, whose parts all rows are.
    """

    target: str
    ceilings: Ceilings
    eager_ms: float = 0.0
    compiled_ms: float = 0.0
    eager_profiled_ms: float = 0.0
    compiled_profiled_ms: float = 0.0
    eager_mib: float = 0.0
    compiled_mib: float = 0.0
    eager_ops: list[Row] = field(default_factory=list)
    compiled_ops: list[Row] = field(default_factory=list)
    modules: list[ModuleRow] = field(default_factory=list)
    breaks: list[dict[str, str]] = field(default_factory=list)


def _best(call: Callable[[], Any], runs: int = 7, gpu: str = "") -> float:
    """The fastest call in seconds, until the GPU is done where there is one."""
    times = []
    for _ in range(runs):
        _wait(gpu)
        start = time.perf_counter()
        call()
        _wait(gpu)
        times.append(time.perf_counter() - start)
    return min(times)


def _wait(gpu: str) -> None:
    if gpu:
        torch.accelerator.synchronize(gpu)


def gpu_of(target: Target) -> str:
    """The GPU that a target's tensors lie on, "" where they lie on the CPU."""
    root = [] if target.root is None else [*target.root.parameters(), *target.root.buffers()]
    tensors = [*tensors_in((target.args, target.kwargs)), *root]
    return next((str(t.device) for t in tensors if t.device.type not in ("cpu", "meta")), "")


def ceilings(gpu: str = "") -> Ceilings:
    """Measure the machine, or a GPU of it."""
    n, kind, elements = (8192, torch.bfloat16, 2**27) if gpu else (1024, torch.float32, 2**24)
    a, b = (torch.randn(n, n, device=gpu or "cpu").to(kind) for _ in range(2))
    source, target = torch.ones(elements, device=gpu or "cpu"), torch.empty(elements, device=gpu or "cpu")
    product, copy = _best(lambda: a @ b, gpu=gpu), _best(lambda: target.copy_(source), gpu=gpu)
    return Ceilings(2 * n**3 / product / 1e9, 8 * elements / copy / 1e9, gpu)


@contextmanager
def _stderr_off() -> Iterator[None]:
    """Nothing is printed on file descriptor 2: the profiler writes lines there as it starts and stops."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _trace(
    call: Callable[[], Any], runs: int, costs: Mapping[str, Cost], path: Path | None, gpu: str = ""
) -> tuple[list[Row], float]:
    """Rows of the outermost ops that `costs` names, children included, and one for the rest; and the mean ms of a call.

    Their times add up to that. On a GPU they are those of the kernels that were started; the rest is when it waited.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    profiler = profile(activities=activities, profile_memory=True)
    _wait(gpu)
    with _stderr_off():
        profiler.start()
    begin = time.perf_counter()
    for _ in range(runs):
        call()
    _wait(gpu)
    whole = time.perf_counter() - begin
    with _stderr_off():
        profiler.stop()
    if path is not None:
        profiler.export_chrome_trace(str(path))
    spent, counts, kib = defaultdict[str, float](float), Counter[str](), defaultdict[str, float](float)
    for event in profiler.events():
        if event.name not in costs or event.device_type.name != "CPU" or _inside(event, costs):
            continue
        spent[event.name] += (event.device_time_total if gpu else event.cpu_time_total) / 1e6
        counts[event.name] += 1
        kib[event.name] += max(event.device_memory_usage if gpu else event.cpu_memory_usage, 0) / 1024
    whole = max(whole, sum(spent.values()))
    rows = []
    for name, seconds in spent.items():
        cost, times = costs[name], counts[name] / max(costs[name].calls, 1)
        text, _, where = name.rpartition(" ") if ".py:" in name else (name, "", "")
        speeds = (times * cost.flops / seconds / 1e9, times * cost.nbytes / seconds / 1e9) if seconds else (0.0, 0.0)
        rows.append(
            Row(text, where, counts[name] / runs, seconds / runs * 1e3, seconds / whole, kib[name] / runs, *speeds)
        )
    rest = whole - sum(spent.values())
    rows.append(Row("the GPU waits" if gpu else "Python and what has no row", "", 0, rest / runs * 1e3, rest / whole))
    return sorted(rows, key=lambda row: -row.ms), whole / runs * 1e3


def _inside(event: Any, costs: Mapping[str, Cost]) -> bool:
    parent = event.cpu_parent
    while parent is not None and parent.name not in costs:
        parent = parent.cpu_parent
    return parent is not None


def _steps(captured: Captured) -> Iterator[tuple[str, Cost, list[str]]]:
    """Of each kernel and library call of the captured graphs: label, cost, and the modules whose nodes it computes."""
    names = dotted_names(captured.target.root)
    for graph in captured.graphs:
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


@dataclass(slots=True)
class _Spent:
    """What was seen of one module. own: seconds without its children."""

    calls: int = 0
    seconds: float = 0.0
    own: float = 0.0


@contextmanager
def _watched(root: torch.nn.Module | None, seen: dict[str, _Spent], gpu: str = "") -> Iterator[None]:
    """Note the wall time of each module's calls in the block, by its path; the GPU is waited for around each."""
    starts: list[float] = []
    inside: list[float] = [0.0]

    def enter(module: torch.nn.Module, args: Any) -> None:
        _wait(gpu)
        starts.append(time.perf_counter())
        inside.append(0.0)

    def leave(path: str, module: torch.nn.Module, args: Any, result: Any) -> None:
        _wait(gpu)
        seconds, children = time.perf_counter() - starts.pop(), inside.pop()
        inside[-1] += seconds
        row = seen.setdefault(path, _Spent())
        row.calls, row.seconds, row.own = row.calls + 1, row.seconds + seconds, row.own + seconds - children

    with ExitStack() as hooks:
        for path, module in () if root is None else root.named_modules():
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.register_forward_hook(partial(leave, path)))
        yield


def _module_rows(
    root: torch.nn.Module, captured: Captured, ops: list[Row], seen: dict[str, _Spent], runs: int
) -> list[ModuleRow]:
    """Rows by class. A step that computes nodes of several modules is divided as eager's time in them is."""
    rows: dict[str, ModuleRow] = {}
    kinds = {name: type(module).__name__ for name, module in root.named_modules()}
    for path, spent in seen.items():
        row = rows.setdefault(kinds[path], ModuleRow(kinds[path]))
        row.calls, row.eager_ms = row.calls + spent.calls / runs, row.eager_ms + spent.seconds / runs * 1e3
    each = {f"{row.name} {row.where}".strip(): row.ms / row.calls for row in ops if row.calls}
    steps = list(_steps(captured))
    nodes = Counter(path for _, _, modules in steps for path in modules)
    for label, _, modules in steps:
        weights = [seen[path].own / nodes[path] if path in seen else 0.0 for path in modules]
        whole = sum(weights)
        for path, weight in zip(modules, weights, strict=True):
            parts = path.split(".") if path else []
            above = {".".join(parts[:n]) for n in range(len(parts) + 1)}
            share = weight / whole if whole else 1 / len(modules)
            for kind in {kinds[p] for p in above if p in kinds} & rows.keys():
                rows[kind].compiled_ms += each.get(label, 0.0) * share
    return sorted(rows.values(), key=lambda row: -row.eager_ms)


def profile_target(target: Target, *, runs: int = 5, trace: Path | None = None) -> Profile:
    """Profile a target eagerly and compiled. A script runs once each way, once more before, and counts whole.

    trace: a Chrome trace of the compiled call is written here, and one of the eager call beside it (`.eager`).
    """
    gpu = gpu_of(target)
    out, runs = Profile(target.name, ceilings(gpu)), 1 if target.script else runs
    compiled = target if target.script else replace(target, fn=firebrick.compile(target.fn))
    block = firebrick.optimize()

    def compiled_call() -> Any:
        with block if target.script else nullcontext():
            return compiled()

    with CostMode() as mode:
        target()
    captured = capture(target)
    compiled_call(), compiled_call()
    pairs = [tuple(_best(f, 1, gpu) * 1e3 for f in (target, compiled_call)) for _ in range(runs)]  # in turn
    out.eager_ms, out.compiled_ms = map(min, zip(*pairs, strict=True))
    eager_trace = trace.with_suffix(".eager" + trace.suffix) if trace else None
    seen: dict[str, _Spent] = {}
    with _watched(target.root, seen, gpu):
        out.eager_ops, out.eager_profiled_ms = _trace(target, runs, mode.costs, eager_trace, gpu)
    costs: dict[str, Cost] = defaultdict(Cost, {} if target.root is not None and not captured.breaks() else mode.costs)
    for label, cost, _ in _steps(captured):
        total = costs[label]
        total.calls, total.flops, total.nbytes = (total.calls + 1, total.flops + cost.flops, total.nbytes + cost.nbytes)
    out.compiled_ops, out.compiled_profiled_ms = _trace(compiled_call, runs, costs, trace, gpu)
    if target.root is not None:
        out.modules = _module_rows(target.root, captured, out.compiled_ops, seen, runs)
    out.eager_mib = mode.peak / 2**20
    schedules = [g.stages.schedule for g in captured.graphs if g.stages is not None]
    out.compiled_mib = max(map(peak_bytes, schedules), default=0) / 2**20
    out.breaks = captured.breaks()
    return out


_WIDE = 130
"""Columns of text from which the whole path and the memory are shown."""
_BELIEVED = 3
"""Times the ceiling from which a rate is left out: the compiled kernel does not do the work that the ops would."""


def _op_table(title: str, rows: list[Row], limits: Ceilings, top: int, width: int) -> Table:
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
        rates = (row.gflops, limits.gflops), (row.gbytes, limits.gbytes)
        speeds = [f"{rate:.0f} {rate / limit:4.0%}" if 0 < rate < _BELIEVED * limit else "" for rate, limit in rates]
        cells = {
            "calls": f"{row.calls:g}" if row.calls else "", "ms": f"{row.ms:.3f}", "share": f"{row.share:.1%}",
            "KiB": f"{row.kib:.0f}" if row.kib else "", "GFLOP/s": speeds[0], "GB/s": speeds[1],
        }  # fmt: skip
        where = [row.where if wide else row.where.rpartition("/")[2]] if places else []
        out.add_row(row.name, *where, *(cells[h] for h in heads))
    below = {"ms": f"{sum(r.ms for r in rows[top:]):.3f}", "share": f"{sum(r.share for r in rows[top:]):.1%}"}
    if len(rows) > top:
        out.add_row(f"{len(rows) - top} more", *([""] if places else []), *(below.get(h, "") for h in heads))
    whole = {"ms": f"{sum(r.ms for r in rows):.3f}", "share": "100.0%"}
    out.add_row("all, under the profiler", *([""] if places else []), *(whole.get(h, "") for h in heads), style="bold")
    return out


def _module_table(rows: list[ModuleRow], top: int) -> Table:
    out = Table(
        title="modules, children included, under the profiler",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
    )
    for head in ("module", "calls", "eager ms", "compiled ms", "times faster"):
        out.add_column(head, justify="left" if head == "module" else "right", no_wrap=True)
    for row in rows[:top]:
        faster = f"{row.eager_ms / row.compiled_ms:.2f}" if row.compiled_ms > 1e-3 else ""
        compiled = f"{row.compiled_ms:.3f}" if row.compiled_ms else ""
        out.add_row(row.name, f"{row.calls:g}", f"{row.eager_ms:.3f}", compiled, faster)
    return out


def tables(profiled: Profile, top: int = 15, width: int = _WIDE) -> list[Table]:
    """Return the tables to print, `width` columns wide: eager ops, modules, compiled kernels and library calls."""
    limits = profiled.ceilings
    speedup = profiled.eager_ms / profiled.compiled_ms
    eager = (
        f"{profiled.target}, eager: {profiled.eager_ms:.2f} ms a call, {profiled.eager_mib:.1f} MiB of results at most"
    )
    compiled = f"{profiled.target}, compiled: {profiled.compiled_ms:.2f} ms a call, {speedup:.2f} times as fast, "
    out = [_op_table(eager, profiled.eager_ops, limits, top, width)]
    if profiled.modules:
        out.append(_module_table(profiled.modules, top))
    out.append(_op_table(f"{compiled}{profiled.compiled_mib:.1f} MiB", profiled.compiled_ops, limits, top, width))
    reached = f"{limits.gflops:.0f} GFLOP/s in matmul, {limits.gbytes:.1f} GB/s in copy"
    out[-1].caption = f"%: of what {limits.gpu or 'this machine'} reaches, {reached}"
    return out
