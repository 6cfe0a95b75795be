"""Latency of one model under load: `python -m bench.serve [MODEL ...] [--clients 1 4 16] [--json]`.

Beside eager and ONNX Runtime, in turns. Each client is a Python thread that calls the model again and again; p50 and
p99 are over all calls of all of them. A contender that can't run a model is a row that says why.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import firebrick
from bench import programs, turns
from bench.contender import CONTENDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One contender under one load. p50, p99: milliseconds. x_p50, x_p99: times as fast as eager, by rounds."""

    model: str
    clients: int
    contender: str
    p50: float = 0.0
    p99: float = 0.0
    rate: float = 0.0
    x_p50: float = 0.0
    x_p99: float = 0.0
    failure: str = ""

    def __str__(self) -> str:
        """A row of a table in Markdown."""
        numbers = f"{self.p50:.2f} | {self.p99:.2f} | {self.p99 / self.p50:.2f} | " if self.p50 else ""
        rest = (
            f"{self.rate:.1f} | {self.x_p50:.2f} | {self.x_p99:.2f} |" if self.p50 else f"{self.failure} |" + " |" * 5
        )
        return f"| {self.model} | {self.clients} | {self.contender} | {numbers}{rest}"


HEAD = (
    "| model | clients | contender | p50 ms | p99 ms | p99 / p50 | calls/s | p50, x eager | p99, x eager |\n|"
    + "---|" * 9
)


def serve(run: Callable[[], Any], clients: int, seconds: float) -> list[float]:
    """Seconds of every call that so many threads make in a time."""
    times: list[list[float]] = [[] for _ in range(clients)]
    barrier = threading.Barrier(clients)

    def client(mine: list[float]) -> None:
        barrier.wait()
        end = time.perf_counter() + seconds
        with torch.no_grad():
            while not mine or time.perf_counter() < end:
                start = time.perf_counter()
                run()
                mine.append(time.perf_counter() - start)

    threads = [threading.Thread(target=client, args=(mine,)) for mine in times]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [t for mine in times for t in mine]


def contenders(name: str, threads: int) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Calls of a model by contender, each made once, and why others can't run it."""
    model, args, kwargs = programs.build_model(name)
    makers: Mapping[str, Callable[[], Any]] = {
        "eager": lambda: model,
        "firebrick": lambda: firebrick.compile(model, options={"threads": threads}),
        "onnxruntime": lambda: CONTENDERS["onnxruntime"](model, kwargs),
    }
    runs: dict[str, Callable[[], Any]] = {}
    failures: dict[str, str] = {}
    for who, make in makers.items():
        try:
            run = partial(make(), *args, **kwargs)
            with torch.no_grad():
                run()
            runs[who] = run
        except Exception as error:  # noqa: BLE001  a row says so
            failures[who] = f"{type(error).__name__}: {error}".partition("\n")[0][:60]
    return runs, failures


def rows(name: str, clients: Sequence[int], threads: int, seconds: float) -> Iterator[Row]:
    """Measure one model under each load."""
    runs, failures = contenders(name, threads)
    turns.wait()
    for count in clients:
        rounds: dict[str, list[list[float]]] = {who: [] for who in runs}
        spent = dict.fromkeys(runs, 0.0)
        for _ in range(ROUNDS):
            for who, run in runs.items():
                start = time.perf_counter()
                rounds[who].append(serve(run, count, seconds))
                spent[who] += time.perf_counter() - start
        cuts = {who: [_cuts(times) for times in every] for who, every in rounds.items()}
        for who, every in rounds.items():
            p50, p99 = (1e3 * statistics.median(c[k] for c in cuts[who]) for k in (0, 1))
            faster = (
                statistics.median(a[k] / b[k] for a, b in zip(cuts["eager"], cuts[who], strict=True)) for k in (0, 1)
            )
            yield Row(name, count, who, p50, p99, sum(map(len, every)) / spent[who], *faster)
        yield from (Row(name, count, who, failure=why) for who, why in failures.items())


def _cuts(times: list[float]) -> tuple[float, float]:
    """The median, and what one call in a hundred takes longer than."""
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table in Markdown, or the rows as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["minilm", "resnet50"])
    parser.add_argument("--clients", nargs="*", type=int, default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=1.0, help=f"of a round; there are {ROUNDS} of each contender")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    every = []
    if not given.json:
        print(HEAD)
    for name in given.models:
        for row in rows(name, given.clients, given.threads, given.seconds):
            every.append(asdict(row))
            if not given.json:
                print(row, flush=True)
    if given.json:
        json.dump(every, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
