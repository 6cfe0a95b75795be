"""Random programs of tensor operations, each called with three sizes of its arguments and compared with eager.

    python -m tests.fuzz_aten.varying [--count 100] [--seed 0]

A dimension of two and more grows by 1, then by 5, wherever it is. Calls that eager refuses, since a line has a size in
it, are left out.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import replace

import torch
from tests.fuzz_aten.check import difference, eager
from tests.fuzz_aten.programs import Program, generate
from tests.ops.cases import copies

import firebrick
from firebrick.errors import LoweringError

GROWTH = (0, 1, 5)


def grown(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """A tensor whose dimensions of two and more are larger, with its elements again and again, in the same order."""
    if not by:
        return tensor
    order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
    for d, n in enumerate(tensor.shape):
        if n > 1:
            tensor = tensor.index_select(d, torch.arange(n + by) % n)
    turned = tensor.resolve_neg().permute(order).contiguous()
    return turned.permute([order.index(d) for d in range(len(order))])


def check(program: Program) -> tuple[int, str]:
    """How many sizes were compared, and what differs."""
    compiled, done = firebrick.compile(program.function(), options={"cache": False}), 0
    for by in GROWTH:
        one = replace(program, arguments=[grown(a, by) for a in program.arguments])
        try:
            eager(one)
        except (RuntimeError, NameError, KeyError, IndexError, ValueError):
            continue
        arguments = copies(one.arguments)
        try:
            with torch.no_grad():
                results = list(compiled(*arguments))
        except Exception as error:
            cause = error.__cause__ or error
            if isinstance(cause, LoweringError):
                break
            return done, f"{type(error).__name__}: {str(error)[:300]}"
        done += 1
        what = difference(one, (results, arguments))
        if what:
            return done, f"grown by {by}: {what}"
    return done, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sizes, wrong, before = 0, 0, firebrick.graphs_compiled()
    for seed in range(options.seed, options.seed + options.count):
        done, what = check(generate(seed))
        sizes += done
        if what:
            wrong += 1
            print(f"seed {seed}: {what}\n{generate(seed).describe()}", flush=True)
        firebrick.reset()
    compiles = firebrick.graphs_compiled() - before
    print(f"{options.count} programs, {sizes} calls compared, {compiles} compiles, {wrong} differ")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
