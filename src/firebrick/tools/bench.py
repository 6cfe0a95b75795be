"""`firebrick bench`: contenders side by side in one run, interleaved, each in a process of its own."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from firebrick.errors import FirebrickError
from firebrick.tools.contender import CONTENDERS
from firebrick.tools.models import MEMORY_BOUND, check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Figures", "bench", "geomean", "markdown", "table"]

DEFAULT = ("eager", "firebrick", "torch.compile")
CPU_CONTENDERS = (*DEFAULT, "torch.compile(freezing)", "onnxruntime", "openvino", "torchscript")
"""All that a CPU's owner may choose from."""
SEVEN = ("bert", "vit", "gpt2", "resnet50", "mobilenet", "convnext", "segformer")
"""The models that peers publish figures of."""
_CACHES = ("FIREBRICK_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_COMPILING = {name for name in CONTENDERS if name not in ("eager", "torchscript", "onnxruntime", "openvino")}


@dataclass(slots=True)
class Figures:
    """What was measured of one contender on one model. Times in seconds, memory in MiB."""

    model: str
    contender: str
    run: float = float("nan")  # median of a call
    speedup: float = float("nan")  # eager's time over this one, the median of the rounds
    cold: float = float("nan")  # first call, fresh process, empty caches
    warm: float = float("nan")  # first call, second process, caches filled by the first
    error: float = float("nan")  # relative to float64
    peak: float = float("nan")  # resident peak of the process, before it compares its result
    copy: float = float("nan")  # a copy of as many bytes as the call must move at least, into memory that is there
    fresh: float = float("nan")  # the same into new memory
    traffic: int = 0  # those bytes
    kernels: int = 0
    graphs: int = 0
    breaks: int = 0
    failed: str = ""
    stages: dict[str, float] = field(default_factory=dict)


class _Process:
    """A contender's process and its JSON-lines channel."""

    def __init__(self, contender: str, caches: Path | None) -> None:
        env = dict(os.environ)
        if caches is not None:
            env |= {name: str(caches / name.lower()) for name in _CACHES}
        command = [sys.executable, "-m", "firebrick.tools.contender"]
        self.popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        )
        self.contender = contender

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.popen.kill()
        self.popen.wait()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        try:
            self.popen.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.popen.stdin.flush()
            line = self.popen.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise FirebrickError(f"{self.contender}: its process ended with status {self.popen.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise FirebrickError(f"{self.contender}: {answer['failed']}")
        return answer


def _first_calls(
    stack: ExitStack, model: str, figures: Figures, caches: Path | None, sizes: dict[str, Any], warm: frozenset[str]
) -> _Process | None:
    """First call in a process that is kept, then a warm one in another; None when the contender fails.

    caches: folder of empty caches, None for those that there are.
    """
    process = stack.enter_context(_Process(figures.contender, caches))
    try:
        process.ask("setup", model=model, contender=figures.contender, sizes=sizes)
        answer = process.ask("first")
        figures.cold = answer["seconds"] if caches is not None else float("nan")
        counts = answer["stats"]["counts"]
        figures.graphs, figures.breaks = counts.get("graphs", 0), counts.get("breaks", 0)
        figures.kernels = counts.get("kernels built", 0)
        figures.stages = answer["stats"]["seconds"]
        if figures.contender in warm:
            with _Process(figures.contender, caches) as second:
                second.ask("setup", model=model, contender=figures.contender, sizes=sizes)
                figures.warm = second.ask("first")["seconds"]
    except FirebrickError as error:
        figures.failed = error.what
        return None
    return process


def bench(
    models: Sequence[str],
    contenders: Sequence[str] = DEFAULT,
    *,
    seconds: float = 6.0,
    warm: bool | Sequence[str] = True,
    cold: bool = True,
    sizes: dict[str, Any] | None = None,
    console: Console | None = None,
) -> list[Figures]:
    """Measure each model under each contender, and print a line as each is compiled and as each is measured.

    seconds: measuring time of one contender on one model, spent in interleaved rounds.
    warm: whether to measure the warm start too, or of which contenders.
    cold: whether each begins with empty caches; False takes those of former runs.

    Interrupted (Ctrl-C), it returns what was measured before the model at hand.

    Raises:
        FirebrickError: an unknown contender or model.
        KeyboardInterrupt: interrupted in the first model.
    """
    unknown = [name for name in contenders if name not in CONTENDERS]
    if unknown:
        raise FirebrickError(f"unknown contender {unknown[0]!r}", fix=f"contenders are {', '.join(CONTENDERS)}")
    for model in models:
        check_name(model)
    console = console or Console(stderr=True)
    results: list[Figures] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:

        def say(row: Figures, text: str) -> None:
            line = Text(f"{row.model}  {row.contender}: {f'failed: {row.failed}' if row.failed else text}")
            progress.console.print(line, soft_wrap=True)

        for model in models:
            rows = [Figures(model, name) for name in contenders]
            task = progress.add_task(model, total=len(rows) + _ROUNDS)
            measure = _Measure(model, rows, sizes or {}, say, partial(progress.update, task, advance=1))
            try:
                measure.run(seconds, frozenset(_COMPILING if warm is True else warm or ()), cold)
            except KeyboardInterrupt:
                if not results:
                    raise
                console.print(f"interrupted while measuring {model}; the models before it follow")
                break
            results += rows
            progress.remove_task(task)
    return results


_ROUNDS = 11  # odd: a median is one round's ratio


@dataclass(frozen=True, slots=True)
class _Measure:
    """One model under its contenders. say: prints a line; step: shows what goes on."""

    model: str
    rows: list[Figures]
    sizes: dict[str, Any]
    say: Callable[[Figures, str], None]
    step: Callable[..., None]

    def run(self, seconds: float, warm: frozenset[str], cold: bool) -> None:
        """Fill in the rows."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firebrick-bench-")))
            processes: dict[str, _Process] = {}
            for k, row in enumerate(self.rows):
                self.step(description=f"{self.model}: compiling with {row.contender}")
                caches = folder / str(k) if cold else None
                process = _first_calls(stack, self.model, row, caches, self.sizes, warm)
                if process is not None:
                    processes[row.contender] = process
                starts = {"first call": row.cold, "warm start": row.warm}
                told = [f"{name} {value:.2f} s" for name, value in starts.items() if value == value]
                self.say(row, ", ".join(told) or "ready")
            times = self._rounds(stack, processes, folder, seconds)
            _compare(self.model, self.rows, processes, folder, self.sizes)
            for row in self.rows:
                if rounds := times.get(row.contender):
                    row.run = statistics.median(chain.from_iterable(rounds))
                    if "eager" in times:
                        row.speedup = ratio(times["eager"], rounds)
                    _, _, run, speedup, _, _, error, _ = _cells(row)
                    self.say(row, f"{run} ms, {speedup} x eager, error {error}")

    def _rounds(
        self, stack: ExitStack, processes: Mapping[str, _Process], folder: Path, seconds: float
    ) -> dict[str, list[list[float]]]:
        """Call the contenders in turn; returns the times of each, by rounds."""
        copying: _Process | None = None
        if self.model in MEMORY_BOUND and "firebrick" in processes:
            copying = stack.enter_context(_Process("copy", folder))
            copying.ask("setup", model=self.model, contender="eager", sizes=self.sizes)
            copying.ask("first")
        copies: dict[str, list[float]] = {"there": [], "fresh": []}
        times: dict[str, list[list[float]]] = {name: [] for name in processes}
        order = list(processes)
        for _ in range(_ROUNDS):
            self.step(description=f"{self.model}: measuring")
            order.reverse()  # who comes after whom changes from round to round
            for name in order:
                answer = processes[name].ask("time", seconds=seconds / _ROUNDS, least=2)
                times[name].append(answer["times"])
                mine = next(r for r in self.rows if r.contender == name)
                mine.peak = answer["peak_mb"]
                if name == "firebrick" and copying is not None:
                    answer = copying.ask("copy", seconds=seconds / _ROUNDS / 2)
                    for kind, found in copies.items():
                        found += answer[kind]
                    mine.copy, mine.fresh = (statistics.median(found) for found in copies.values())
                    mine.traffic = answer["bytes"]
        return times


def ratio(theirs: Sequence[Sequence[float]], ours: Sequence[Sequence[float]]) -> float:
    """How many times theirs ours is faster: the median of the rounds' ratios of medians.

    A machine that changes its speed between two rounds changes both times of a round.
    """
    pairs = zip(theirs, ours, strict=True)
    return statistics.median(statistics.median(t) / statistics.median(o) for t, o in pairs)


def _compare(
    model: str, rows: list[Figures], processes: Mapping[str, _Process], folder: Path, sizes: dict[str, Any]
) -> None:
    """Compare results with float64's: last, for what that takes is no part of a contender's peak."""
    reference = str(folder / "reference.pt")
    with _Process("reference", folder) as double, suppress(FirebrickError):  # it may not run in float64
        double.ask("setup", model=model, contender="eager", sizes=sizes)
        double.ask("reference", path=reference)
    for figures in rows:
        if figures.contender in processes and Path(reference).exists():
            try:
                figures.error = processes[figures.contender].ask("error", path=reference)["error"]
            except FirebrickError as error:
                figures.failed = error.what


def geomean(values: Sequence[float]) -> float:
    """Geometric mean; NaN for none."""
    return statistics.geometric_mean(values) if values else float("nan")


def _seconds(value: float) -> str:
    return "-" if value != value else f"{value:.2f}"


def _cells(row: Figures) -> list[str]:
    if row.failed:
        return [row.model, row.contender, "failed", "", "", "", "", ""]
    return [
        row.model,
        row.contender,
        f"{row.run * 1e3:.4g}",
        _seconds(row.speedup),
        _seconds(row.cold),
        _seconds(row.warm),
        "-" if row.error != row.error else f"{row.error:.1e}",
        f"{row.peak:.0f}",
    ]


_HEAD = ("model", "contender", "run ms", "x eager", "cold s", "warm s", "error", "peak MiB")


def _notes(results: Sequence[Figures]) -> list[str]:
    """What the table has no column for: what was captured, and why a contender failed."""
    notes = [f"{r.model}: {r.graphs} graph(s), {r.breaks} break(s)" for r in results if r.contender == "firebrick"]
    for r in results:
        if r.traffic:
            notes.append(
                f"{r.model}: moves {r.traffic / 2**20:.0f} MiB at {r.traffic / r.run / 1e9:.1f} GB/s; "
                f"copies of as much take {r.copy * 1e3:.3g} ms, into new memory {r.fresh * 1e3:.3g} ms, so it takes "
                f"{r.run / r.copy:.2f} and {r.run / r.fresh:.2f} times as long"
            )
    return notes + _summary(results) + [f"{r.model}: {r.contender} failed: {r.failed}" for r in results if r.failed]


def _summary(results: Sequence[Figures]) -> list[str]:
    """Firebrick against each of the others on the models that the other runs, and what its compiles cost."""
    found = {(r.model, r.contender): r for r in results if not r.failed and r.run == r.run}
    mine = {model: r for (model, name), r in found.items() if name == "firebrick"}
    if len(mine) < 2:
        return []
    notes = []
    for name in dict.fromkeys(r.contender for r in results if r.contender not in ("eager", "firebrick")):
        for text, models in (("all", list(mine)), ("the seven", [m for m in SEVEN if m in mine])):
            both = [(mine[m], found[m, name]) for m in models if (m, name) in found]
            if both:
                ours, theirs = (geomean([pair[k].speedup for pair in both]) for k in (0, 1))
                notes.append(f"firebrick {ours:.2f}, {name} {theirs:.2f} on the {len(both)} of {text} that it runs")
        cold = [found[m, name].cold / mine[m].cold for m in mine if (m, name) in found]
        if name in _COMPILING and cold:
            notes.append(f"cold start: 1/{geomean(cold):.1f} of {name}'s")
    slowest = max(mine.values(), key=lambda r: r.cold)
    kernels, build = sum(r.kernels for r in mine.values()), sum(r.stages.get("build", 0.0) for r in mine.values())
    notes.append(f"longest cold start: {slowest.cold:.2f} s ({slowest.model})")
    if kernels:
        notes.append(f"C++ compiler: {build:.2f} s for {kernels} kernels, {build / kernels * 100:.2f} s per hundred")
    return notes


def table(results: Sequence[Figures]) -> Table:
    """Return a rich table of the results, with the geomean of each contender's speed-ups."""
    note = "medians, x eager of rounds; each contender in its own process; error relative to float64\n"
    title = f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
    caption = note + "\n".join(_notes(results))
    # Units below names and narrow gaps: the longest contender's name fits into 80 columns.
    out = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in _HEAD:
        is_text = name in ("model", "contender")
        out.add_column(
            name.replace(" ", "\n"),
            justify="left" if is_text else "right",
            vertical="bottom",
            no_wrap=name != "model",
            overflow="fold",
        )
    previous = ""
    for row in results:
        if previous and row.model != previous:
            out.add_section()
        previous = row.model
        out.add_row(*_cells(row), style="bold" if row.contender == "firebrick" else "")
    if len({row.model for row in results}) > 1:
        out.add_section()
        for name, mean in _geomeans(results):
            out.add_row("geomean", name, "", f"{mean:.2f}")
    return out


def _geomeans(results: Sequence[Figures]) -> list[tuple[str, float]]:
    names = dict.fromkeys(row.contender for row in results)
    return [(n, geomean([r.speedup for r in results if r.contender == n and not r.failed])) for n in names]


def markdown(results: Sequence[Figures], command: str) -> str:
    """Return the results as a Markdown section headed by the command that makes them."""
    lines = [
        f"## `{command}`",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, torch {torch.__version__}.",
        "",
    ]
    lines += ["| " + " | ".join(_HEAD) + " |", "|" + "---|" * len(_HEAD)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in results]
    lines += [f"| geomean | {name} | | {mean:.2f} | | | | |" for name, mean in _geomeans(results)]
    lines += ["", *(f"- {note}" for note in _notes(results))]
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[Figures]) -> str:
    """Return the results as JSON; NaN becomes null."""
    rows = [{k: None if isinstance(v, float) and v != v else v for k, v in asdict(row).items()} for row in results]
    return json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "results": rows}, indent=2)
