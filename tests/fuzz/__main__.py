"""Differential fuzzing: random programs, plain against `firebrick.compile(main)`.

    python -m tests.fuzz --count 1000 --seed 0 [--jobs 2] [--seconds S] [--json] [--no-shrink] [--out build/fuzz]

Programs run in worker processes, so that a crash is a result too; failures are shrunk and written to `--out`.
`--show SEED` prints a program, `--seeds SEED...` runs some. Programs are put together from a table of features
(`features/`); `--only FEATURE` runs programs that all have one, `--features` lists them. The feature `python` is programs
of statements alone, run with `backend="eager"` and compared bit by bit. `--training` runs training programs
(`training.py`): steps of a model with hooks, several losses, second gradients and an optimizer; `--varying` runs programs
whose sizes, ints and floats differ from call to call (`varying.py`), and tells how many graphs each compiled.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.features import FEATURES, WHOLE, WRITERS, generate

ROOT = Path(__file__).resolve().parents[2]
CALL = re.compile(r"^    +out = main\(", re.MULTILINE)
"""What a program that is driven keeps as it is shrunk."""
STATUSES = {
    "same": "the same",
    "left": "left to eager",
    "different": "differ",
    "crash": "crash",
    "timeout": "time out",
    "broken": "not comparable",
}
FAILURES = ("different", "crash", "timeout")


# -- in the worker ------------------------------------------------------------------


def try_program(text: str, backend: str) -> dict:
    """What became of one program: "left" if no kernels can do a graph of it, and eager does it right."""
    from tests.fuzz.compare import TimedOut, compare

    left = ""
    try:
        found = compare(text, backend=backend)
        if found is not None and found.kind.startswith("error LoweringError"):
            left, found = cause_of(found.compiled), compare(text, backend=backend, strict=False)
        elif found is not None and re.match(r"BackendError: .* raised (LoweringError|RefusedBackward)", found.compiled):
            # A backend of its own has nothing to fall back to: capture alone is compared.
            left, found = cause_of(found.compiled), compare(text.replace('BACKEND = "aot_eager"', 'BACKEND = "eager"'))
    except TimedOut:
        return {"status": "timeout"}
    except Exception as error:
        return {"status": "broken", "kind": f"{type(error).__name__}: {error}"[:200]}
    if found is None:
        return {"status": "left", "kind": left} if left else {"status": "same"}
    return {
        "status": "different",
        "kind": found.kind,
        "call": found.call,
        "plain": found.plain,
        "compiled": found.compiled,
    }


def cause_of(told: str) -> str:
    """The line of what was told of an error that names it."""
    return ([line for line in told.splitlines() if re.match(r"[\w.]+Error: .", line)] or [told.partition("\n")[0]])[-1]


def work(options: argparse.Namespace) -> None:
    """Read jobs from stdin, write one line of JSON for each to the real stdout."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # programs print; that's not for the protocol
    import torch

    import firebrick

    torch.set_num_threads(1)
    faulthandler.enable()
    if options.device != "cpu":  # a default of its own is a mode of torch
        torch.set_default_device(options.device)
    counts: dict[str, int] = {}
    breaks: dict[str, int] = {}
    for line in sys.stdin:
        job = json.loads(line)
        text = job.get("text") or generate(job["seed"], options.only)
        start = time.perf_counter()
        row = try_program(text, options.backend)
        row["seconds"] = time.perf_counter() - start
        row["seed"] = job["seed"]
        if is_lost(options.device):
            # What comes behind an assertion of eager's kernel says nothing of ours.
            status = {"status": "broken"} if "CUDA error" in row.get("plain", "") else {}
            out.write(json.dumps({**row, **status, "lost": True}) + "\n")
            os._exit(0)
        if row["status"] == "different" and options.shrink and not job.get("text"):
            row["text"] = shrunk(text, row["kind"], options)
        stats = firebrick.stats()
        row["counts"] = _since(counts, stats["counts"])
        row["breaks"] = _since(breaks, stats["reasons"].get("break", {}))
        firebrick.reset()
        out.write(json.dumps(row) + "\n")


def is_lost(device: str) -> bool:
    """Whether the GPU works no longer for this process, since a kernel failed."""
    import torch

    try:
        if device != "cpu":
            torch.accelerator.synchronize()
    except RuntimeError:
        return True
    return False


def _since(last: dict[str, int], now: dict[str, int]) -> dict[str, int]:
    new = {name: count - last.get(name, 0) for name, count in now.items() if count != last.get(name, 0)}
    last.clear()
    last.update(now)
    return new


def shrunk(text: str, kind: str, options: argparse.Namespace) -> str:
    from tests.fuzz.shrink import shrink

    def fails(candidate: str) -> bool:
        if "def drive(" in text and not CALL.search(candidate):
            return False
        row = try_program(candidate, options.backend)
        return row["status"] == "different" and row["kind"] == kind

    return shrink(text, fails, options.shrink_seconds)


# -- in the parent ------------------------------------------------------------------


class Worker:
    """One child process; it is started again when it dies."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.child: subprocess.Popen | None = None

    def start(self) -> subprocess.Popen:
        options = self.options
        args = [sys.executable, "-m", "tests.fuzz", "--worker", "--backend", options.backend]
        args += ["--device", options.device]
        args += ["--only", options.only] if options.only else []
        args += ["--shrink-seconds", str(options.shrink_seconds)] + ([] if options.shrink else ["--no-shrink"])
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        env.setdefault("FIREBRICK_STRICT", "1")
        log = options.out / "worker.log"
        return subprocess.Popen(
            args,
            cwd=ROOT,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("a"),
            start_new_session=True,  # Ctrl-C is for the parent, which lets the programs at hand end
        )

    def run(self, job: dict) -> dict:
        if self.child is None or self.child.poll() is not None:
            self.child = self.start()
        child = self.child
        line = ""
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(job) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        if not line:
            code = child.wait()
            self.child = None
            return {"status": "crash", "seed": job["seed"], "kind": f"exit {code}"}
        row = json.loads(line)
        if row.pop("lost", False):
            child.wait()
            self.child = None
        return row

    def stop(self) -> None:
        if self.child is not None:
            self.child.stdin.close()
            self.child.wait(timeout=30)


def run_all(seeds: list[int], options: argparse.Namespace, progress) -> list[dict]:
    """The outcome of each program; Ctrl-C ends with those that have run."""
    rows: list[dict] = []
    todo = iter(seeds)
    stopped = threading.Event()
    end = time.perf_counter() + options.seconds
    lock = threading.Lock()
    task = progress.add_task("programs", total=len(seeds))

    def loop() -> None:
        worker = Worker(options)
        while True:
            with lock:
                seed = next(todo, None) if time.perf_counter() < end and not stopped.is_set() else None
            if seed is None:
                break
            row = worker.run({"seed": seed})
            with lock:
                rows.append(row)
                if "text" in row:
                    (options.out / f"seed{row['seed']}.py").write_text(row["text"])
                failed = sum(r["status"] in FAILURES for r in rows)
                if row["status"] in FAILURES:
                    progress.console.print(f"seed {seed}: {row['status']} {row.get('kind', '')}", markup=False)
                progress.update(task, advance=1, description=f"programs, {failed} differ")
                if not progress.console.is_terminal and len(rows) % 500 == 0:
                    progress.console.print(f"{len(rows):,} of {len(seeds):,} programs, {failed} differ")
        worker.stop()

    threads = [threading.Thread(target=loop) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        stopped.set()
        for thread in threads:
            thread.join()
    return sorted(rows, key=lambda r: r["seed"])


def shrink_crash(seed: int, options: argparse.Namespace) -> str:
    """Crashes are shrunk from outside, a process for each death."""
    from tests.fuzz.shrink import shrink

    worker = Worker(options)

    def fails(candidate: str) -> bool:
        return worker.run({"seed": seed, "text": candidate})["status"] == "crash"

    text = shrink(generate(seed, options.only), fails, options.shrink_seconds)
    worker.stop()
    return text


def summary(rows: list[dict]) -> dict:
    totals: dict[str, int] = {}
    breaks: dict[str, int] = {}
    statuses: dict[str, int] = {}
    for row in rows:
        statuses[row["status"]] = statuses.get(row["status"], 0) + 1
        for name, count in row.get("counts", {}).items():
            totals[name] = totals.get(name, 0) + count
        for name, count in row.get("breaks", {}).items():
            breaks[name] = breaks.get(name, 0) + count
    left = Counter(row["kind"][:160] for row in rows if row["status"] == "left").most_common(15)
    common = sorted(breaks.items(), key=lambda kv: -kv[1])[:15]
    return {"programs": len(rows), "statuses": statuses, "counts": totals, "breaks": dict(common), "left": dict(left)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=max((os.cpu_count() or 2) // 2, 1))
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--device", default="cpu", help="where programs make their tensors")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    parser.add_argument("--shrink-seconds", type=float, default=40.0)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no program after this time")
    parser.add_argument(
        "--only", choices=[*FEATURES, WHOLE, *WRITERS], metavar="FEATURE", help="programs that have this feature"
    )
    parser.add_argument("--training", dest="only", action="store_const", const="training", help="training programs")
    parser.add_argument("--varying", dest="only", action="store_const", const="varying", help="sizes differ over calls")
    parser.add_argument("--features", action="store_true", help="list the features")
    parser.add_argument("--seeds", type=int, nargs="*")
    parser.add_argument("--show", type=int)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.show is not None:
        print(generate(options.show, options.only))
        return 0
    if options.features:
        for row in FEATURES.values():
            print(f"{row.name:20} {row.weight:3} {(row.writer.__doc__ or '').partition(chr(10))[0]}")
        return 0
    if options.worker:
        work(options)
        return 0
    from rich.console import Console
    from rich.progress import Progress

    options.out.mkdir(parents=True, exist_ok=True)
    seeds = options.seeds or list(range(options.seed, options.seed + options.count))
    console = Console(stderr=True)
    start = time.perf_counter()
    with Progress(console=console) as progress:
        rows = run_all(seeds, options, progress)
    failures = [row for row in rows if row["status"] in FAILURES]
    for row in failures:
        if row["status"] == "crash" and options.shrink:
            row["text"] = shrink_crash(row["seed"], options)
        text = row.get("text") or generate(row["seed"], options.only)
        (options.out / f"seed{row['seed']}.py").write_text(text)
        told = [f"{name}:\n{row[name]}\n" for name in ("kind", "call", "plain", "compiled") if name in row]
        (options.out / f"seed{row['seed']}.txt").write_text("\n".join(told))
    result = {**summary(rows), "seconds": round(time.perf_counter() - start, 1), "failures": failures}
    if options.json:
        print(json.dumps(result))
        return int(bool(failures))
    counts = result["counts"]
    console.print(
        f"{counts.get('frames', 0):,} frames captured, {counts.get('graphs', 0):,} graphs, {counts.get('ops', 0):,} ops, "
        f"{counts.get('breaks', 0):,} breaks; the most frequent:"
    )
    for text, count in result["breaks"].items():
        console.print(f"  {count:6,} {text}", markup=False)
    for row in failures[:20]:
        console.rule(f"seed {row['seed']}: {row['status']} {row.get('kind', '')}")
        parts = [f"call {row.get('call')}", *(f"  {side:9}{row.get(side, '')[:400]}" for side in ("plain", "compiled"))]
        console.print("\n".join(parts), markup=False)
    told = ", ".join(f"{result['statuses'].get(name, 0):,} {text}" for name, text in STATUSES.items())
    if options.only == "varying":
        graphs = Counter(row.get("counts", {}).get("graphs", 0) for row in rows)
        console.print("graphs captured: " + ", ".join(f"{n} in {graphs[n]} programs" for n in sorted(graphs)))
    for text, count in result["left"].items():
        console.print(f"left {count}: {text}", markup=False)
    console.print(f"{result['programs']:,} programs from seed {seeds[0]}: {told}; {result['seconds']:.0f} s")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
