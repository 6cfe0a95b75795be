"""The first samples of every operator, in all variants, many operators to a graph: minutes where all of `make ops` takes hours.

    python -m tests.ops.quick [--dtypes bfloat16 ...] [--samples 1]

The sums are those of `make ops` but for "loops": a case counts as called where any of its graph is.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import warnings
from typing import TYPE_CHECKING

import torch
from tests.ops.cases import DTYPES, Case, cases, operators
from tests.ops.compare import TOLERANCE, UNINITIALIZED, Outcome, check

if TYPE_CHECKING:
    from collections.abc import Iterator

TOGETHER = 100


def batches(dtype: torch.dtype, samples: int) -> Iterator[list[Case]]:
    """Cases of all operators, about a hundred at a time; operators that are compared in another way are left out."""
    batch: list[Case] = []
    for name, op in sorted(operators().items()):
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
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bad = 0
    for dtype in options.dtypes:
        found = Outcome()
        for batch in batches(DTYPES[dtype], options.samples):
            part = check("several", batch, batch=2 * TOGETHER)
            found.done += part.done
            for kind in ("left", "failed", "wrong"):
                getattr(found, kind).extend(getattr(part, kind))
        print(report(dtype, found), flush=True)
        bad += len(found.wrong) + len(found.failed)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
