"""The first samples of every operator, in all variants, many operators to a graph: minutes where all of `make ops` takes hours.

    python -m tests.ops.quick [--dtypes bfloat16 ...] [--samples 1] [--device cuda] [--part 3/14]

A part is every so-manieth operator, to run several at once; then what differs is printed as it is met.
The sums are those of `make ops` but for "loops": a case counts as called where any of its graph is.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import json
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

import torch
from tests.fuzz.__main__ import is_lost
from tests.ops.cases import DTYPES, Case, cases, operators
from tests.ops.compare import TOLERANCE, UNINITIALIZED, UNWRITTEN_RESULTS, Outcome, check, is_unwritten

if TYPE_CHECKING:
    from collections.abc import Iterator

TOGETHER = 100
LOST = "lost: "
"""What a worker's line begins with that tells what ended the GPU for it."""


def batches(dtype: torch.dtype, samples: int, part: tuple[int, int] = (0, 1)) -> Iterator[list[Case]]:
    """Cases of all operators, about a hundred at a time; operators that are compared in another way are left out."""
    batch: list[Case] = []
    for name, op in sorted(operators().items())[part[0] :: part[1]]:
        if name in TOLERANCE or name in UNWRITTEN_RESULTS or op.name in UNINITIALIZED:
            continue
        batch += [
            dataclasses.replace(c, name=f"{name} {c.name}")
            for c in cases(op, dtype, 0, samples)
            if not is_unwritten(name, c) and not stops_card(name, c)
        ]
        if len(batch) >= TOGETHER:
            yield batch
            batch = []
    yield batch


def stops_card(name: str, case: Case) -> bool:
    """Whether eager mode's kernel stops a GPU for the process, or launches what a trace can't look into."""
    on_cpu = torch.get_default_device().type == "cpu"
    asserts = name.startswith("nn.functional.embedding") and case.name.startswith("empty")
    return not on_cpu and (asserts or name.startswith("jiterator"))


def report(dtype: str, found: Outcome) -> str:
    """Sums, then each failure and difference."""
    sums = f"cases {found.done}  left {len(found.left)}  failed {len(found.failed)}  wrong {len(found.wrong)}"
    lines = [f"{kind} {call}: {why}" for kind in ("wrong", "failed") for call, why in getattr(found, kind)]
    return "\n".join([f"{dtype:9} {sums}", *lines])


def work(options: argparse.Namespace) -> int:
    """Compare, from a batch on. A kernel that fails ends the GPU for a process: then the batch and the case are told."""
    first, parts = map(int, options.part.split("/"))
    begin, single, case = options.begin
    number, bad = -1, 0
    for dtype in options.dtypes:
        found = Outcome()
        for batch in batches(DTYPES[dtype], options.samples, (first, parts)):
            number += 1
            if number < begin:
                continue
            alone = single and number == begin
            for k, group in enumerate([[c] for c in batch] if alone else [batch]):
                if alone and k < case:
                    continue
                try:
                    part = check("several", group, batch=2 * TOGETHER)
                except RuntimeError:
                    if not is_lost(options.device):
                        raise
                if is_lost(options.device):
                    print(f"{LOST}{json.dumps((number, alone, k, group[0].describe()))}", flush=True)
                    os._exit(1)
                found.done += part.done
                for kind in ("left", "failed", "wrong"):
                    getattr(found, kind).extend(getattr(part, kind))
                if parts > 1 and not alone:
                    print(report(dtype, part), flush=True)
        print(report(dtype, found), flush=True)
        bad += len(found.wrong) + len(found.failed)
    return int(bad > 0)


def watch(arguments: list[str]) -> int:
    """Run a worker, and another behind what ended the GPU for it, a batch's cases one by one."""
    begin, bad = "0,0,0", 0
    while True:
        command = [sys.executable, "-m", "tests.ops.quick", *arguments, "--begin", begin]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lost = None
        for line in worker.stdout:
            lost = json.loads(line.removeprefix(LOST)) if line.startswith(LOST) else lost
            if not line.startswith(LOST):
                print(line, end="", flush=True)
        status = worker.wait()
        if lost is None:
            return bad or status
        number, alone, case, name = lost
        bad = 1
        begin = f"{number},1,{case + 1}" if alone else f"{number},1,0"
        if alone:
            print(f"failed {name}: ends the GPU for a process", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    parser.add_argument("--samples", type=int, default=1, help="of each operator")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="0/1", help="K/N: one of N parts of the operators, from 0 on")
    parser.add_argument("--begin", type=lambda text: tuple(map(int, text.split(","))), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device != "cpu" and options.begin is None:
        return watch(sys.argv[1:])
    options.begin = options.begin or (0, 0, 0)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.device != "cpu":  # a default of its own is a mode of torch
        torch.set_default_device(options.device)
    faulthandler.enable()
    return work(options)


if __name__ == "__main__":
    sys.exit(main())
