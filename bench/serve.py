"""Latency of one model under load: `python -m bench.serve [MODEL ...] [--clients 1 4 16]`.

Beside eager and ONNX Runtime, in turns. Each client is a Python thread that calls the model again and again; p50 and
p99 are over all calls of all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import firebrick
from bench import programs
from bench.contender import CONTENDERS

if TYPE_CHECKING:
    from collections.abc import Callable


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


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["minilm", "resnet50"])
    parser.add_argument("--clients", nargs="*", type=int, default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=1.0, help="of a round; there are five of each contender")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print("| model | clients | contender | p50 ms | p99 ms | calls/s | p50, x eager | p99, x eager |\n|" + "---|" * 8)
    for name in given.models:
        model, args, kwargs = programs.build_model(name)
        compiled = firebrick.compile(model, options={"threads": given.threads})
        runs = {"eager": partial(model, *args, **kwargs), "firebrick": partial(compiled, *args, **kwargs)}
        with contextlib.suppress(ImportError):
            runs["onnxruntime"] = partial(CONTENDERS["onnxruntime"](model, kwargs), **kwargs)
        with torch.no_grad():
            for run in runs.values():
                run()
        for clients in given.clients:
            rounds: dict[str, list[list[float]]] = {who: [] for who in runs}
            for _ in range(5):
                for who, run in runs.items():
                    rounds[who].append(serve(run, clients, given.seconds))
            cuts = {who: [_cuts(times) for times in every] for who, every in rounds.items()}
            for who, every in rounds.items():
                p50, p99 = (statistics.median(c[k] for c in cuts[who]) for k in (0, 1))
                ratios = [
                    statistics.median(a[k] / b[k] for a, b in zip(cuts["eager"], cuts[who], strict=True))
                    for k in (0, 1)
                ]
                rate = sum(map(len, every)) / len(every) / given.seconds
                print(
                    f"| {name} | {clients} | {who} | {1e3 * p50:.2f} | {1e3 * p99:.2f} | {rate:.1f} "
                    f"| {ratios[0]:.2f} | {ratios[1]:.2f} |",
                    flush=True,
                )


def _cuts(times: list[float]) -> tuple[float, float]:
    """The median, and what one call in a hundred takes longer than."""
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]


if __name__ == "__main__":
    main()
