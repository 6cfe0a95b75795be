"""Random programs of tensor operations: eager, our kernels and the loop interpreter.

    python -m tests.fuzz_aten --count 1000 --seed 0 [--jobs 2] [--seconds S] [--show SEED] [--out build/fuzz_aten] [--varying]

Programs are compiled twenty at a time; one that differs is shrunk and printed. With `--varying` each is called at three
sizes of its arguments instead (`varying.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BATCH = 20


def work(device: str, is_varying: bool) -> None:
    """Read first seeds from stdin, write one line of JSON for each to the real stdout."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import torch
    from tests.fuzz.__main__ import is_lost
    from tests.fuzz_aten import check as static
    from tests.fuzz_aten import varying
    from tests.fuzz_aten.programs import generate

    check, shrink = (varying.check_all, varying.shrink) if is_varying else (static.check, static.shrink)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if device != "cpu":  # a default of its own is a mode of torch
        torch.set_default_device(device)
    for line in sys.stdin:
        first, count = json.loads(line)
        rows, programs = [], []
        row = {"seed": first, "kind": "lost", "what": "a kernel failed in eager mode", "text": ""}
        try:
            programs = [generate(seed) for seed in range(first, first + count)]
            if not is_lost(device):
                row |= {"kind": "crash", "what": "a kernel failed", "text": programs[0].describe()}
            found = check(programs)
        except RuntimeError:
            if not is_lost(device):
                raise
        if is_lost(device):
            out.write(json.dumps(row) + "\n")
            os._exit(0)
        for program, kind, what in found:
            text = "" if kind == "left" else shrink(program, kind).describe()
            rows.append({"seed": program.seed, "kind": kind, "what": what, "text": text})
        out.write(json.dumps(rows) + "\n")


def run_all(options: argparse.Namespace) -> tuple[int, list[dict]]:
    """How many programs ran, and all rows of those that were not the same."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    end = options.seed + options.count
    todo = iter([(k, min(BATCH, end - k)) for k in range(options.seed, end, BATCH)])
    rows: list[dict] = []
    ran, stop_at = 0, time.perf_counter() + options.seconds
    alone: list[tuple[int, int]] = []
    lock, stopping = threading.Lock(), threading.Event()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    env |= {"OMP_NUM_THREADS": "1", "FIREBRICK_STRICT": "1"}
    options.out.mkdir(parents=True, exist_ok=True)
    log = (options.out / "worker.log").open("a")

    def start() -> subprocess.Popen:
        args = [sys.executable, "-m", "tests.fuzz_aten", "--worker", "--device", options.device]
        args += ["--varying"] * options.varying
        return subprocess.Popen(
            args, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )

    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("programs", total=options.count)

        def loop() -> None:
            nonlocal ran
            child = start()
            while not stopping.is_set():
                with lock:
                    late = time.perf_counter() > stop_at
                    job = alone.pop() if alone else None if late else next(todo, None)
                if job is None:
                    break
                child.stdin.write(json.dumps(job) + "\n")
                child.stdin.flush()
                line = child.stdout.readline()
                if stopping.is_set():
                    break
                made = json.loads(line) if line else None
                if isinstance(made, dict):  # a kernel failed, and the GPU with it: which program's, each alone tells
                    child.wait()
                    child = start()
                    made = [made]
                    if job[1] > 1:
                        with lock:
                            alone.extend((seed, 1) for seed in range(job[0], job[0] + job[1]))
                        continue
                elif made is None:
                    made = [{"seed": job[0], "kind": "crash", "what": f"status {child.wait()} in {job}", "text": ""}]
                    child = start()
                with lock:
                    rows.extend(made)
                    ran += job[1]
                    bad = sum(r["kind"] not in ("left", "lost") for r in rows)
                    progress.update(task, advance=job[1], description=f"programs, {bad} differ")
                    for row in made:
                        if row["kind"] not in ("left", "lost"):
                            (options.out / f"seed{row['seed']}.txt").write_text(f"{row['what']}\n\n{row['text']}\n")
            child.kill()
            child.wait()

        threads = [threading.Thread(target=loop, daemon=True) for _ in range(options.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except KeyboardInterrupt:
            stopping.set()
    return ran, sorted(rows, key=lambda r: r["seed"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=max(os.cpu_count() or 1, 1))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no programs after this time")
    parser.add_argument("--device", default="cpu", help="where programs make their tensors")
    parser.add_argument("--show", type=int, help="print the program of a seed")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz_aten")
    parser.add_argument("--varying", action="store_true", help="call each at three sizes")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.device, options.varying)
        return 0
    if options.show is not None:
        from tests.fuzz_aten.programs import generate

        print(generate(options.show).describe())
        return 0
    ran, rows = run_all(options)
    counts = {kind: sum(r["kind"] == kind for r in rows) for kind in ("wrong", "failed", "crash", "left", "lost")}
    same = ran - sum(counts.values())
    print(f"{ran} programs: {same} the same, {counts['left']} left to eager, {counts['failed']} failed, "
          f"{counts['wrong']} wrong, {counts['crash']} crashes, {counts['lost']} end the GPU for a process")  # fmt: skip
    for reason, times in Counter(r["what"].partition(": ")[2][:100] for r in rows if r["kind"] == "left").most_common():
        print(f"left {times}: {reason}")
    for row in rows:
        if row["kind"] != "left":
            print(f"\nseed {row['seed']} {row['kind']}: {row['what']}\n{row['text']}")
    return int(counts["wrong"] + counts["crash"] > 0)


if __name__ == "__main__":
    sys.exit(main())
