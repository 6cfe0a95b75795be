"""The small models of `tests/models/zoo.py` on a GPU: as near to float64 as eager mode, step by step and recorded.

    python tests/gpu/models.py [MODEL ...] [--device cuda] [--part 3/8]

A part is every so-manieth model, to run several at once.
"""

from __future__ import annotations

import argparse
import copy
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.models.coverage import flatten
from tests.models.zoo import ZOO, build

import firebrick

CALLS = 6
"""After a few calls a program is recorded."""
ULPS = 64
"""Units in the last place of the largest element by which sums in another order may differ."""


def wrong_with(name: str, device: str) -> str:
    """What is wrong with a model; nothing if all is right."""
    model, inputs = build(name)
    model, inputs = model.to(device), tree_map(lambda v: v.to(device) if torch.is_tensor(v) else v, inputs)

    def call(fn: Any, **given: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        return flatten(fn(**given))

    with torch.no_grad():
        eager = call(model, **inputs)
        wide = tree_map(lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v, inputs)
        try:
            exact = [
                e.to(t.dtype).double() for e, t in zip(call(copy.deepcopy(model).double(), **wide), eager, strict=True)
            ]
        except RuntimeError:  # its own code makes float32
            exact = [t.double() for t in eager]
        run = firebrick.compile(model)
        for _ in range(CALLS):
            made = call(run, **inputs)
            for a, b, c in zip(made, eager, exact, strict=True):
                if (a.dtype, a.shape, a.stride(), a.device) != (b.dtype, b.shape, b.stride(), b.device):
                    return f"{a.dtype} {[*a.shape]} of strides {a.stride()}, eager {b.dtype} {[*b.shape]}, {b.stride()}"
                ours, theirs = ((t.double() - c).abs().nan_to_num().max().item() if t.numel() else 0.0 for t in (a, b))
                largest = c.abs().nan_to_num().max().item() if c.numel() else 0.0
                unit = torch.finfo(a.dtype).eps * max(1.0, largest) if a.is_floating_point() else 0.0
                if ours > 2 * theirs + ULPS * unit or not torch.equal(a.isnan(), b.isnan()):
                    return f"{ours:.1e} from float64's result, eager {theirs:.1e}"
    return ""


def main() -> int:
    """Print a line a model; 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", default="0/1", help="K/N: one of N parts of the models, from 0 on")
    options = parser.parse_args()
    first, parts = map(int, options.part.split("/"))
    bad = 0
    for name in (options.models or list(ZOO))[first::parts]:
        firebrick.reset()
        try:
            text = wrong_with(name, options.device)
        except Exception as error:  # noqa: BLE001 - a line of its own
            text = f"{type(error).__name__}: {error}".partition("\n")[0]
        bad += bool(text)
        print(f"{name}: {text or 'ok'}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
