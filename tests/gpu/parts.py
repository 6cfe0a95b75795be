"""What needs a GPU, in parts of ten minutes at most: tests, torch's operator database, fuzzers, models.

    python tests/gpu/parts.py [tests] [ops] [fuzz] [models] [--seconds 570] [--jobs 8]

A part's processes run at once. Those that have not ended in time are ended, and count as failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
HANGS = 120
"""Seconds after which a test shows where it is, and ends its process."""


def commands(part: str, jobs: int, seconds: int) -> list[list[str]]:
    """The processes of a part, as what follows `python`."""
    device = ("--device", "cuda")
    limits = ("-o", f"faulthandler_timeout={HANGS}", "-o", "faulthandler_exit_on_timeout=true")
    fuzzing = (*device, "--count", "1000000", "--seconds", str(seconds // 2), "--jobs", str(max(1, jobs // 2)))
    return {
        "tests": [["-m", "pytest", "-n", str(jobs), *limits, "tests/gpu"]],
        "ops": [["-m", "tests.ops.quick", *device, "--part", f"{k}/{jobs}"] for k in range(jobs)],
        "fuzz": [
            ["-m", "tests.fuzz", "--backend", "firebrick", "--no-shrink", *fuzzing],
            ["-m", "tests.fuzz_aten", *fuzzing],
        ],
        "models": [["tests/gpu/models.py", *device, "--part", f"{k}/{jobs}"] for k in range(jobs)],
    }[part]


PARTS = ("tests", "ops", "fuzz", "models")


def run(part: str, jobs: int, seconds: int) -> list[str]:
    """Run a part; what failed."""
    print(f"==> {part}", flush=True)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "FIREBRICK_STRICT": "1"}
    begin, bad = time.monotonic(), []
    processes = [
        subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, start_new_session=True)
        for words in commands(part, jobs, seconds)
    ]
    try:
        for process in processes:
            shown = f"{part}: python {' '.join(process.args[1:])}"
            try:
                if process.wait(max(0.1, begin + seconds - time.monotonic())):
                    bad.append(f"{shown}: status {process.returncode}")
            except subprocess.TimeoutExpired:
                bad.append(f"{shown}: not done after {seconds} s")
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    print(f"==> {part}: {len(bad)} of {len(processes)} failed, {time.monotonic() - begin:.0f} s", flush=True)
    return bad


def main() -> int:
    """Run parts one after another; 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    parser.add_argument("--seconds", type=int, default=570, help="that a part may take")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes at once")
    options = parser.parse_args()
    if unknown := [p for p in options.parts if p not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; parts are {', '.join(PARTS)}")
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU here")
    failed = [line for part in options.parts or PARTS for line in run(part, options.jobs, options.seconds)]
    print("\n".join(failed) or "all is right")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
