"""torch's operator database through firebrick on the CPU, forward: every operator, dtype, sample and variant.

    python -m tests.ops --errors [--spoiled N] [--json FILE]        # calls that eager refuses: tests/ops/errors.py
    python -m tests.ops [--only NAME...] [--dtypes float32 ...] [--samples N] [--jobs 2] [--fresh] [--markdown FILE] [--layouts]

With --layouts the arguments of the first samples lie in memory in unusual ways, alone and beside a layer and a residual.
Workers are processes, so that a crash or a hang is a result too. Each finished row is kept in build/ops/rows.jsonl
(layouts.jsonl);
a run that was interrupted goes on where it ended, unless --fresh is given, and one with more samples than before adds those.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST_LIMIT = 40
"""Refusals, failures and differences that one row keeps."""


# -- in the worker ------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    """Read jobs from stdin, write one line of JSON for each to the real stdout."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import warnings

    import torch
    from tests.ops.cases import cases, operators
    from tests.ops.compare import check
    from tests.ops.layouts import LAYOUT_DTYPES, layout_cases

    make = layout_cases if options.layouts else cases
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = operators()
    for line in sys.stdin:
        job = json.loads(line)
        start = time.perf_counter()
        name, dtype = job["op"], job["dtype"]
        try:
            available = sum(1 for _ in known[name].sample_inputs("cpu", LAYOUT_DTYPES[dtype]))
            end = min(job["end"] or available, available)
            found = check(name, list(make(known[name], LAYOUT_DTYPES[dtype], job["first"], end)))
            row = {
                "available": available,
                "end": end,
                "cases": found.done,
                "loops": found.loops,
                "called": found.called,
                "calls": sorted(found.calls),
                "kinds": found.kinds,
                **{k: len(getattr(found, k)) for k in ("left", "failed", "wrong")},
                "details": {k: getattr(found, k)[:LIST_LIMIT] for k in ("left", "failed", "wrong")},
            }
        except Exception as error:
            row = broken(f"the samples could not be made: {type(error).__name__}: {error}"[:300])
        row = job | row | {"seconds": round(time.perf_counter() - start, 2)}
        out.write(json.dumps(row) + "\n")


def broken(reason: str) -> dict:
    """The row of a job that gave none."""
    row = {
        "available": 0,
        "end": 0,
        "cases": 1,
        "loops": 0,
        "called": 0,
        "calls": [],
        "left": 0,
        "failed": 1,
        "wrong": 0,
    }
    return row | {"details": {"left": [], "failed": [["", reason]], "wrong": []}}


# -- in the parent ------------------------------------------------------------------


class Worker:
    """One child process; it is started again when it dies or hangs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.child: subprocess.Popen | None = None

    def start(self) -> subprocess.Popen:
        args = [sys.executable, "-m", "tests.ops", "--worker", *(["--layouts"] if self.options.layouts else [])]
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        env |= {"OMP_NUM_THREADS": "1"}
        log = (ROOT / "build" / "ops" / "worker.log").open("a")
        return subprocess.Popen(
            args, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )

    def run(self, job: dict) -> dict:
        if self.child is None or self.child.poll() is not None:
            self.child = self.start()
        child = self.child
        line = ""
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()
            if not select.select([child.stdout], [], [], self.options.timeout)[0]:
                child.kill()
                child.wait()
                self.child = None
                row = broken(f"took more than {self.options.timeout} s") | job
                return row | {"end": job["first"], "seconds": self.options.timeout}
            line = child.stdout.readline()
        if not line:
            self.child = None
            return broken(f"the process died with status {child.wait()}") | job | {"end": job["first"], "seconds": 0}
        return json.loads(line)

    def stop(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.wait()


def run_all(jobs: list[dict], options: argparse.Namespace, store: Path) -> None:
    """Do the jobs and append a row for each to `store`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    todo, lock, stopping = iter(jobs), threading.Lock(), threading.Event()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress, store.open("a", buffering=1) as out:
        task = progress.add_task("operators", total=len(jobs))
        bad = [0, 0]

        def loop() -> None:
            worker = Worker(options)
            while not stopping.is_set():
                with lock:
                    job = next(todo, None)
                if job is None:
                    break
                row = worker.run(job)
                if stopping.is_set():
                    break
                with lock:
                    out.write(json.dumps(row) + "\n")
                    bad[0] += row["wrong"]
                    bad[1] += row["failed"]
                    text = f"{row['op']} {row['dtype']}: {bad[0]} wrong, {bad[1]} failed"
                    progress.update(task, advance=1, description=text)
            worker.stop()

        threads = [threading.Thread(target=loop, daemon=True) for _ in range(options.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except KeyboardInterrupt:
            stopping.set()
            progress.console.print("interrupted; the next run goes on from here")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="operators by name")
    parser.add_argument("--dtypes", nargs="*", default=None)
    parser.add_argument("--samples", type=int, default=None, help="at most so many of each operator and dtype")
    parser.add_argument("--jobs", type=int, default=max(os.cpu_count() or 1, 1))
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one operator and dtype")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    parser.add_argument("--retry", action="store_true", help="forget rows with failures or differences")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    parser.add_argument("--errors", action="store_true", help="calls that eager refuses instead of those that it takes")
    parser.add_argument("--spoiled", type=int, default=0, help="with --errors: also so many samples of each, spoiled")
    parser.add_argument("--json", type=Path, help="with --errors: write every call and what it raised to this file")
    parser.add_argument("--layouts", action="store_true", help="arguments in every layout, the first four samples")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    if options.errors:
        from tests.ops import errors

        return errors.run(options.only, options.spoiled, options.json, options.markdown)
    from tests.ops.cases import DTYPES, operators
    from tests.ops.layouts import LAYOUT_DTYPES, SAMPLES
    from tests.ops.table import done, read_rows, summary, write_layouts, write_table

    store = ROOT / "build" / "ops" / ("layouts.jsonl" if options.layouts else "rows.jsonl")
    options.samples = options.samples or (SAMPLES if options.layouts else None)
    store.parent.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        store.unlink(missing_ok=True)
    rows = read_rows(store)
    if options.retry:
        rows = {k: r for k, r in rows.items() if not (r["wrong"] or r["failed"])}
        store.write_text("".join(json.dumps(r) + "\n" for r in rows.values()))
    dtypes = options.dtypes or list(LAYOUT_DTYPES if options.layouts else DTYPES)
    known = operators()
    jobs = [
        {"op": name, "dtype": dtype, "first": first, "end": options.samples}
        for dtype in dtypes
        for name in options.only or known
        if LAYOUT_DTYPES[dtype] in known[name].supported_dtypes("cpu")
        for first in [0 if options.only else done(rows.get((name, dtype)))]
        if first == 0 or first < min(options.samples or rows[name, dtype]["available"], rows[name, dtype]["available"])
    ]
    run_all(jobs, options, store)
    rows = read_rows(store)
    if options.only:
        rows = {k: r for k, r in rows.items() if k[0] in options.only and k[1] in dtypes}
    print(summary(rows))
    if options.markdown:
        (write_layouts if options.layouts else write_table)(rows, options.markdown)
    return int(any(r["wrong"] for r in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
