"""`firebrick profile`: where the time and memory of a call go, eager beside compiled."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

import firebrick

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Ceilings", "Profile", "Row", "ceilings", "profile_target", "tables"]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this machine reaches: GFLOP/s of a 1024^3 f32 matmul, GB/s (read and written) of a 64 MiB copy."""

    gflops: float
    gbytes: float


@dataclass(frozen=True, slots=True)
class Row:
    """One op, kernel or module. Times in ms a call, memory in KiB allocated a call, gflops as achieved."""

    name: str
    calls: float
    ms: float
    share: float
    kib: float = 0.0
    gflops: float = 0.0


@dataclass(slots=True)
class Profile:
    """Rows by time, of the eager and of the compiled call."""

    target: str
    ceilings: Ceilings
    eager_ms: float = 0.0
    compiled_ms: float = 0.0
    eager_ops: list[Row] = field(default_factory=list)
    compiled_ops: list[Row] = field(default_factory=list)
    modules: list[Row] = field(default_factory=list)


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


def _trace(call: Callable[[], Any], runs: int, path: Path | None) -> list[Row]:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_flops=True, record_shapes=True) as found:
        for _ in range(runs):
            call()
    if path is not None:
        found.export_chrome_trace(str(path))
    events = [e for e in found.key_averages() if e.self_cpu_time_total > 0]
    whole = sum(e.self_cpu_time_total for e in events) or 1.0
    rows = []
    for event in events:
        seconds = event.self_cpu_time_total / 1e6
        rows.append(
            Row(
                event.key,
                event.count / runs,
                seconds / runs * 1e3,
                event.self_cpu_time_total / whole,
                max(event.self_cpu_memory_usage, 0) / runs / 1024,
                (event.flops or 0) / seconds / 1e9,
            )
        )
    return sorted(rows, key=lambda row: -row.ms)


def _modules(model: torch.nn.Module, call: Callable[[], Any], runs: int) -> list[Row]:
    """Wall time by module class, children included, so that the shares of nested classes overlap."""
    spent: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    starts: list[float] = []

    def enter(module: torch.nn.Module, args: Any) -> None:
        starts.append(time.perf_counter())

    def leave(module: torch.nn.Module, args: Any, result: Any) -> None:
        name = type(module).__name__
        spent[name] += time.perf_counter() - starts.pop()
        counts[name] += 1

    with ExitStack() as hooks:
        for module in model.modules():
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.register_forward_hook(leave))
        start = time.perf_counter()
        for _ in range(runs):
            call()
        whole = time.perf_counter() - start
    rows = [Row(name, counts[name] / runs, s / runs * 1e3, s / whole) for name, s in spent.items()]
    return sorted(rows, key=lambda row: -row.ms)


def profile_target(
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    runs: int = 5,
    trace: Path | None = None,
) -> Profile:
    """Profile a call eagerly and compiled.

    trace: a Chrome trace of the compiled call is written here, and one of the eager call beside it (`.eager`).
    """
    out = Profile(name, ceilings())
    compiled = firebrick.compile(fn)
    with torch.no_grad():

        def eager_call() -> Any:
            return fn(*args, **kwargs)

        def compiled_call() -> Any:
            return compiled(*args, **kwargs)

        eager_call(), compiled_call()
        out.eager_ms, out.compiled_ms = _best(eager_call, runs) * 1e3, _best(compiled_call, runs) * 1e3
        eager_trace = trace.with_suffix(".eager" + trace.suffix) if trace else None
        out.eager_ops = _trace(eager_call, runs, eager_trace)
        out.compiled_ops = _trace(compiled_call, runs, trace)
        if isinstance(fn, torch.nn.Module):
            out.modules = _modules(fn, eager_call, runs)
    return out


_HEAD = {"calls": 5, "ms": 8, "share": 6, "KiB": 6, "GFLOP/s": 7, "of peak": 7}


def _table(title: str, rows: list[Row], found: Ceilings, top: int) -> Table:
    """Times are a call's; KiB is what a call allocates; peak is the machine's matmul speed."""
    head = _HEAD if any(row.kib or row.gflops for row in rows) else {k: _HEAD[k] for k in ("calls", "ms", "share")}
    out = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    out.add_column("name", no_wrap=True, overflow="ellipsis")
    for name, width in head.items():
        out.add_column(name, justify="right", no_wrap=True, min_width=width)
    for row in rows[:top]:
        speed = (f"{row.gflops:.1f}", f"{row.gflops / found.gflops:.0%}") if row.gflops else ("", "")
        cells = (f"{row.calls:g}", f"{row.ms:.3f}", f"{row.share:.1%}", f"{row.kib:.0f}", *speed)
        out.add_row(row.name, *cells[: len(head)])
    return out


def tables(found: Profile, top: int = 15) -> list[Table]:
    """Return the tables to print: eager ops, modules, compiled ops."""
    limits = found.ceilings
    speedup = found.eager_ms / found.compiled_ms
    out = [_table(f"{found.target}, eager: {found.eager_ms:.2f} ms a call", found.eager_ops, limits, top)]
    if found.modules:
        out.append(_table("modules, eager, children included", found.modules, limits, top))
    title = f"{found.target}, compiled: {found.compiled_ms:.2f} ms a call, {speedup:.2f} times eager"
    out.append(_table(title, found.compiled_ops, limits, top))
    out[-1].caption = f"machine: {limits.gflops:.0f} GFLOP/s in matmul, {limits.gbytes:.1f} GB/s in copy"
    return out
