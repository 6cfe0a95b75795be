"""Several measurements on a machine of many cores: prepared side by side, measured one after another, or few at a time.

    python -m bench.together "bench.cpu bert --seconds 1" "bench.training vit --torch-compile" ...

Each command is a process on `--cores` cores of its own, with as many threads. What takes minutes, compiling by all
contenders, happens on all cores at once; nothing else runs while one measures, so its figures are those of the command
alone, but for first calls. `--beside` lets so many measure at a time, on cores of their own; they share the memory.
Commands that never wait (`bench.matmul`) are best given to `--last`, which runs them when the others are done.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from bench.turns import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN = ("|", "- ")
"""How lines of a result begin: rows of tables, and notes below them."""


class Job:
    """A command in a process of its own, its caches too."""

    def __init__(self, command: str, cores: Iterable[int], folder: str, *, waits: bool = True) -> None:
        self.command, self.cores = command, set(cores)
        there, self.begin = os.pipe()
        self.prepared, here = os.pipe()
        # Files, not pipes: nothing reads while it prepares.
        self.log = open(tempfile.mkstemp(".log", dir=folder)[1], "a+")  # noqa: SIM115
        env = os.environ | {"OMP_NUM_THREADS": str(len(self.cores)), "PYTHONUNBUFFERED": "1"}
        env |= {name: tempfile.mkdtemp(dir=folder) for name in ("FIREBRICK_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
        env |= {VARIABLE: f"{there} {here}"} if waits else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", *shlex.split(command)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            pass_fds=(there, here),
            preexec_fn=lambda: (os.sched_setaffinity(0, self.cores), os.setpgid(0, 0))[0],
        )
        os.close(there), os.close(here)

    @property
    def ready(self) -> bool:
        """Whether it waits for its turn, or has ended."""
        return bool(select.select([self.prepared], [], [], 0)[0])

    def measure(self, until: float) -> str:
        """Give it its turn: the lines of its results, or the last lines of what it said."""
        if self.process.poll() is None:
            os.write(self.begin, b"g")
        try:
            self.process.wait(max(until - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            self.end()
        self.log.seek(0)
        lines = self.log.read().splitlines()
        return "\n".join([line for line in lines if line.startswith(_SHOWN)] or lines[-12:])

    def end(self) -> None:
        """Stop it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run(commands: list[str], last: list[str], given: argparse.Namespace) -> None:
    """Prepare and measure all."""
    start, folder = time.monotonic(), tempfile.mkdtemp(prefix="firebrick-together-")
    owned = sorted(os.sched_getaffinity(0))

    def blocks(size: int) -> list[list[int]]:
        return [owned[k : k + size] for k in range(0, len(owned) - size + 1, size)]

    jobs: list[Job] = []
    try:
        late = prepare(commands, blocks(given.cores), start + given.patience, folder, jobs)
        taken: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)  # two may have been prepared on the same

        def alone(job: Job) -> str:
            with taken[min(job.cores)]:
                return job.measure(start + given.limit)

        with ThreadPoolExecutor(given.beside) as pool:
            for job, text in zip(list(jobs), pool.map(alone, list(jobs)), strict=True):
                print(f"\n`python -m {job.command}`\n\n{text}", flush=True)
        free: queue.Queue[list[int]] = queue.Queue()
        for block in blocks(given.last_cores or len(owned))[: given.beside]:
            free.put(block)

        def measured(command: str) -> str:
            block = free.get()
            jobs.append(job := Job(command, block, folder, waits=False))
            text = job.measure(start + given.limit)
            free.put(block)
            return text

        with ThreadPoolExecutor(free.qsize()) as pool:
            for command, text in zip(last, pool.map(measured, last), strict=True):
                print(f"\n`python -m {command}`\n\n{text}", flush=True)
        print("\n".join(f"left out: {command}" for command in late))
    finally:
        for job in jobs:
            job.end()


def prepare(commands: list[str], free: list[list[int]], until: float, folder: str, jobs: list[Job]) -> list[str]:
    """Start commands on free cores, and add to `jobs` those that are ready in time; the others."""
    waiting, busy, start = list(commands), [], time.monotonic()
    while (waiting or busy) and time.monotonic() < until:
        while waiting and free:
            busy.append(Job(waiting.pop(0), free.pop(0), folder))
        for job in [job for job in busy if job.ready]:
            print(f"prepared after {time.monotonic() - start:.0f} s: {job.command}", file=sys.stderr, flush=True)
            busy.remove(job)
            jobs.append(job)
            free.append(sorted(job.cores))
        time.sleep(0.2)
    for job in busy:
        job.end()
    jobs.sort(key=lambda job: commands.index(job.command))
    return waiting + [job.command for job in busy]


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "commands", nargs="*", metavar="COMMAND", help='a module of bench and its arguments, e.g. "bench.int8 bert"'
    )
    parser.add_argument(
        "--last", action="append", default=[], metavar="COMMAND", help="on all cores, behind the others"
    )
    parser.add_argument("--cores", type=int, default=2, help="of each command; its number of threads (default 2)")
    parser.add_argument("--last-cores", type=int, help="of each command of --last (default: all)")
    parser.add_argument(
        "--beside", type=int, default=1, help="how many measure at a time, on cores of their own (default 1)"
    )
    parser.add_argument("--patience", type=float, default=300, help="seconds for preparing; what is late is left out")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for all")
    given = parser.parse_args()
    run(given.commands, given.last, given)


if __name__ == "__main__":
    main()
