"""`firebrick bench`: a program in eager PyTorch, Firebrick and torch.compile, in turns, in a process each."""

from __future__ import annotations

import copy
import gc
import json
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch.utils._pytree import tree_map

import firebrick
from firebrick.passes.modules import output_error, tensors_of
from firebrick.tools.subject import Target

CONTENDERS = ("eager", "firebrick", "torch.compile")
HEAD = ("model", "contender", "run ms", "x eager", "cold s", "warm s", "error", "peak MiB")
ROUNDS = 11  # odd: a median is one round's ratio
_FORMATS = (".4g", ".2f", ".2f", ".2f", ".1e", ".0f")
_CACHES = ("FIREBRICK_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_NAN = float("nan")
_TOGETHER = 8  # calls between two marks of a GPU


@dataclass(slots=True)
class Figures:
    """What was measured of one contender on one target. Times in seconds, memory in MiB."""

    model: str
    contender: str
    run: float = _NAN  # median of a call
    speedup: float = _NAN  # eager's time over this one, the median of the rounds
    cold: float = _NAN  # first call, fresh process, empty caches
    warm: float = _NAN  # first call, second process, caches filled by the first
    error: float = _NAN  # relative to float64
    peak: float = _NAN  # resident peak of the process, before it compares its result; or what it had of the GPU
    failed: str = ""
    stats: dict[str, Any] = field(default_factory=dict)  # `firebrick.stats()` after the first call

    @property
    def cells(self) -> list[str]:
        """A row of the table."""
        if self.failed:
            return [self.model, self.contender, "failed", "", "", "", "", ""]
        values = (self.run * 1e3, self.speedup, self.cold, self.warm, self.error, self.peak)
        numbers = ["-" if v != v else f"{v:{form}}" for v, form in zip(values, _FORMATS, strict=True)]
        return [self.model, self.contender, *numbers]


class Contender:
    """A target and its compiled form, in a process of its own; the methods are what the parent asks for."""

    KINDS: Mapping[str, Callable[[Any, dict[str, Any]], Callable[..., Any]]] = {
        "eager": lambda fn, kwargs: fn,
        "firebrick": lambda fn, kwargs: firebrick.compile(fn),
        "torch.compile": lambda fn, kwargs: torch.compile(fn),
    }
    """Name -> how to compile (callable, keyword arguments of a call)."""

    def __init__(self, name: str, kind: str, sizes: dict[str, Any]) -> None:
        torch.manual_seed(0)  # all contenders draw the same inputs
        target = self.target = self.load(name, **sizes)
        torch.set_grad_enabled(target.script)
        args, kwargs = copy.deepcopy((target.args, target.kwargs))  # a program may write them, and tracing runs it
        if target.script and kind.startswith("torch.compile"):
            target.fn.module = ModuleType("__main__")  # type: ignore[attr-defined]  # its code reads what it put there
        fn = self.KINDS[kind](target.fn, target.kwargs)
        self.call = lambda: fn(*target.args, **target.kwargs)
        self.call_fresh = lambda: fn(*copy.deepcopy(args), **copy.deepcopy(kwargs))

    def load(self, name: str, **sizes: Any) -> Target:
        """Find the target."""
        return Target.load(name, **sizes)

    def first(self) -> tuple[float, dict[str, Any]]:
        """Make the first call, which compiles: its seconds and `firebrick.stats()`."""
        start = time.perf_counter()
        self.result = self.call()
        return time.perf_counter() - start, firebrick.stats()

    def reference(self, path: str) -> None:
        """Write the float64 result to `path`."""
        wide = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v  # noqa: E731
        args, kwargs = tree_map(wide, (self.target.args, self.target.kwargs))
        fn = self.target.fn.double() if isinstance(self.target.fn, torch.nn.Module) else self.target.fn
        torch.save(tensors_of(fn(*args, **kwargs)), path)

    def error(self, path: str) -> float:
        """Compare a result with the float64 one at `path`."""
        reference = torch.load(path)
        results = [
            tensor.to(double.dtype) for tensor, double in zip(tensors_of(self.call_fresh()), reference, strict=True)
        ]
        return output_error([reference], [results]) if results else _NAN

    def time(self, seconds: float) -> tuple[list[float], float]:
        """Call for about `seconds`: the time of each, and the process's peak of memory.

        The first call is not counted: threads of the process before may still spin.
        """
        times: list[float] = []
        gc.collect()
        self.call()
        end = time.perf_counter() + seconds
        while len(times) < 2 or time.perf_counter() < end:
            start = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - start)
        return times, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class GpuContender(Contender):
    """The same on the GPU at hand. Its clock times calls that follow one another, so it may wait for the host."""

    KINDS = {**Contender.KINDS, "reduce-overhead": lambda fn, kwargs: torch.compile(fn, mode="reduce-overhead")}  # noqa: RUF012
    DEVICE = "cuda"

    def load(self, name: str, dtype: str = "float32", **_: Any) -> Target:
        """Find the target, and move its module and arguments; floats get a dtype."""
        target, floats = super().load(name), getattr(torch, dtype)
        kind = lambda v: floats if v.is_floating_point() else v.dtype  # noqa: E731
        move = lambda v: v.to(self.DEVICE, kind(v)) if torch.is_tensor(v) else v  # noqa: E731
        args, kwargs = tree_map(move, (target.args, target.kwargs))
        fn = target.fn.to(self.DEVICE, floats) if isinstance(target.fn, torch.nn.Module) else target.fn
        return replace(target, fn=fn, args=args, kwargs=kwargs)

    def first(self) -> tuple[float, dict[str, Any]]:
        """Make the first call, until the GPU is done."""
        start, (_, stats) = time.perf_counter(), super().first()
        torch.cuda.synchronize()
        return time.perf_counter() - start, stats

    def time(self, seconds: float) -> tuple[list[float], float]:
        """Call for about `seconds`: the time of each by the GPU's clock, and the peak of its memory."""
        times: list[float] = []
        begin, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.reset_peak_memory_stats()
        end = time.perf_counter() + seconds
        while len(times) < 2 or time.perf_counter() < end:
            begin.record()
            for _ in range(_TOGETHER):
                self.call()
            done.record()
            done.synchronize()
            times.append(begin.elapsed_time(done) / 1e3 / _TOGETHER)
        return times[1:], torch.cuda.max_memory_allocated() / 2**20


_contender: Contender  # a child's only one


def _begin(caches: Path | None) -> None:
    with open(os.devnull, "w") as nothing:  # what libraries print must not mix with the table
        os.dup2(nothing.fileno(), 1), os.dup2(nothing.fileno(), 2)
    os.environ.update({name: str(caches / name.lower()) for name in _CACHES} if caches else {})


def _setup(kind: type[Contender], args: Sequence[Any]) -> None:
    global _contender
    _contender = kind(*args)


def _ask(command: str, args: Sequence[Any]) -> Any:
    return getattr(_contender, command)(*args)


class Process:
    """A contender in its process. caches: folder of empty caches, None for those that there are."""

    def __init__(self, kind: type[Contender], caches: Path | None, *args: Any) -> None:
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _begin, (caches,))
        self.setup = self.pool.submit(_setup, kind, args)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()

    def ask(self, command: str, *args: Any) -> Any:
        """Call a method of the contender."""
        self.setup.result()
        return self.pool.submit(_ask, command, args).result()


@dataclass(slots=True)
class Measure:
    """One target under its contenders, whose rows it fills in.

    say: is told of each row as it is compiled and as it is measured; warm: who is started a second time;
    cold: whether caches begin empty; kind: what runs in the contenders' processes.
    """

    model: str
    rows: Sequence[Figures]
    say: Callable[[Figures, str], None]
    warm: Sequence[str]
    cold: bool = True
    sizes: dict[str, Any] = field(default_factory=dict)
    kind: type[Contender] = Contender

    def run(self, seconds: float) -> None:
        """Measure each for about `seconds`."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firebrick-bench-")))
            sides = {}
            for k, row in enumerate(self.rows):
                side = stack.enter_context(self.process(row, folder / str(k)))
                if self._try(row, self._first, row, side, folder / str(k)):
                    sides[row.contender] = side
                starts = {"first call": row.cold, "warm start": row.warm}
                parts = (f"{name} {value:.2f} s" for name, value in starts.items() if value == value)
                self.say(row, ", ".join(parts) or "ready")
            exact = self._exact(folder)
            times = self.rounds(sides, seconds)
            self._compare(sides, exact)
            for row in self.rows:
                if rounds := times.get(row.contender):
                    row.run = statistics.median(chain.from_iterable(rounds))
                    row.speedup = ratio(times["eager"], rounds) if "eager" in times else _NAN
                    _, _, run, speedup, _, _, error, _ = row.cells
                    self.say(row, f"{run} ms, {speedup} x eager, error {error}")

    def process(self, row: Figures, caches: Path) -> Process:
        """Start a contender's process."""
        return Process(self.kind, caches if self.cold else None, self.model, row.contender, self.sizes)

    def _try(self, row: Figures, step: Callable[..., None], *args: Any) -> bool:
        try:
            step(*args)
        except Exception as error:  # noqa: BLE001  (it is this contender's result)
            row.failed = f"{type(error).__name__}: {error}".partition("\n")[0]
        return not row.failed

    def _first(self, row: Figures, side: Process, caches: Path) -> None:
        """First call in the process that is kept, then a warm one in another."""
        seconds, row.stats = side.ask("first")
        row.cold = seconds if self.cold else _NAN
        if row.contender in self.warm:
            with self.process(row, caches) as second:
                row.warm, _ = second.ask("first")

    def rounds(
        self, sides: Mapping[str, Process], seconds: float, after: Callable[[], None] = lambda: None
    ) -> dict[str, list[list[float]]]:
        """Call the contenders in turn, in an order that changes from round to round; the times of each, by rounds."""
        times: dict[str, list[list[float]]] = {name: [] for name in sides}

        def measure(row: Figures) -> None:
            seconds_of_calls, row.peak = sides[row.contender].ask("time", seconds / ROUNDS)
            times[row.contender].append(seconds_of_calls)

        for k in range(ROUNDS):
            for row in self.rows[:: -1 if k % 2 == 0 else 1]:
                if row.contender in times and not self._try(row, measure, row):
                    del times[row.contender]
            after()
        return times

    def _exact(self, folder: Path) -> str:
        """File of float64's results; "" where it does not run in float64."""
        reference, path = Figures(self.model, "eager"), str(folder / "reference.pt")
        with self.process(reference, folder) as double:
            return path if self._try(reference, double.ask, "reference", path) else ""

    def _compare(self, sides: Mapping[str, Process], exact: str) -> None:
        """Compare results with float64's: last, for what that takes is no part of a contender's peak."""

        def compare(row: Figures) -> None:
            row.error = sides[row.contender].ask("error", exact)

        for row in self.rows if exact else ():
            if row.contender in sides:
                self._try(row, compare, row)


def ratio(theirs: Sequence[Sequence[float]], ours: Sequence[Sequence[float]]) -> float:
    """How many times theirs ours is faster: the median of the rounds' ratios of medians.

    A machine that changes its speed between two rounds changes both times of a round.
    """
    pairs = zip(theirs, ours, strict=True)
    return statistics.median(statistics.median(t) / statistics.median(o) for t, o in pairs)


def measure_all(
    names: Sequence[str], contenders: Sequence[str], make: Callable[..., Measure], *, seconds: float, console: Console
) -> list[Figures]:
    """Measure each target under each contender, and print a line as each is compiled and as each is measured.

    Interrupted (Ctrl-C), it returns what was measured before the target at hand.

    Raises:
        KeyboardInterrupt: interrupted in the first.
    """
    results: list[Figures] = []

    def say(row: Figures, text: str) -> None:
        line = f"{row.model}  {row.contender}: {f'failed: {row.failed}' if row.failed else text}"
        console.print(Text(line), soft_wrap=True)

    for name in names:
        rows = [Figures(name, contender) for contender in contenders]
        try:
            with console.status(f"measuring {name}"):
                make(name, rows, say).run(seconds)
        except KeyboardInterrupt:
            if not results:
                raise
            console.print(f"interrupted while measuring {name}; the models before it follow")
            break
        results += rows
    return results


def as_json(rows: Sequence[Figures], gpu: str = "") -> str:
    """Return the results as JSON; NaN becomes null."""
    data = [{k: None if v != v else v for k, v in asdict(row).items()} for row in rows]
    machine = {"gpu": gpu} if gpu else {"threads": torch.get_num_threads()}
    return json.dumps({"torch": torch.__version__, **machine, "results": data}, indent=2)


def table(rows: Sequence[Figures], caption: str = "", gpu: str = "") -> Table:
    """Return a table of the results that fits 80 columns: units below names, narrow gaps."""
    title = f"{gpu or f'CPU, {torch.get_num_threads()} threads'}, torch {torch.__version__}"
    note = "medians, x eager of rounds; each contender in its own process; error relative to float64"
    failed = "".join(f"\n{r.model}: {r.contender} failed: {r.failed}" for r in rows if r.failed)
    out = Table(
        title=title, caption=f"{note}{caption}{failed}", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for name in HEAD:
        left = name in ("model", "contender")
        out.add_column(
            name.replace(" ", "\n"), justify="left" if left else "right", no_wrap=name != "model", overflow="fold"
        )
    for k, row in enumerate(rows):
        if k and row.model != rows[k - 1].model:
            out.add_section()
        out.add_row(*row.cells, style="bold" if row.contender == "firebrick" else "")
    return out
