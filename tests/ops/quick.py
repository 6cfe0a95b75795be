"""The first samples of every operator, in all variants, many operators to a graph: minutes where all of `make ops` takes hours.

    python -m tests.ops.quick [--dtypes bfloat16 ...] [--samples 1] [--device cuda] [--part 3/14]

A part is every so-manieth operator, to run several at once; then what differs is printed as it is met.
The sums are those of `make ops` but for "loops": a case counts as called where any of its graph is.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import sys
import warnings
from typing import TYPE_CHECKING

import torch
from tests.ops.cases import DTYPES, Case, cases, operators
from tests.ops.compare import TOLERANCE, UNINITIALIZED, Outcome, check

if TYPE_CHECKING:
    from collections.abc import Iterator

TOGETHER = 100


def batches(dtype: torch.dtype, samples: int, part: tuple[int, int] = (0, 1)) -> Iterator[list[Case]]:
    """Cases of all operators, about a hundred at a time; operators that are compared in another way are left out."""
    batch: list[Case] = []
    for name, op in sorted(operators().items())[part[0] :: part[1]]:
        if name in TOLERANCE or op.name in UNINITIALIZED:
            continue
        batch += [dataclasses.replace(c, name=f"{name} {c.name}") for c in cases(op, dtype, 0, samples)]
        if len(batch) >= TOGETHER:
            yield batch
            batch = []
    yield batch


def report(dtype: str, found: Outcome) -> str:
    """Sums, then each failure and difference."""
    sums = f"cases {found.done}  left {len(found.left)}  failed {len(found.failed)}  wrong {len(found.wrong)}"
    lines = [f"{kind} {call}: {why}" for kind in ("wrong", "failed") for call, why in getattr(found, kind)]
    return "\n".join([f"{dtype:9} {sums}", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    parser.add_argument("--samples", type=int, default=1, help="of each operator")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="0/1", help="K/N: one of N parts of the operators, from 0 on")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.device != "cpu":  # a default of its own is a mode of torch
        torch.set_default_device(options.device)
    first, parts = map(int, options.part.split("/"))
    faulthandler.enable()
    bad = 0
    for dtype in options.dtypes:
        found = Outcome()
        for batch in batches(DTYPES[dtype], options.samples, (first, parts)):
            part = check("several", batch, batch=2 * TOGETHER)
            found.done += part.done
            for kind in ("left", "failed", "wrong"):
                getattr(found, kind).extend(getattr(part, kind))
            if parts > 1:
                print(report(dtype, part), flush=True)
        print(report(dtype, found), flush=True)
        bad += len(found.wrong) + len(found.failed)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
