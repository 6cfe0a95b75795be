"""GFLOP/s of matmuls by constant weights in every form of theirs: `python -m bench.matmul [ROWSxINNERxOUTER]`.

Weights come from memory, as in a model; the best call counts. `chosen` is the fastest. On a
busy machine `--threads 1 --cpu-time` tells more than the clock on the wall.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
import time
from functools import partial

import torch

from firebrick.config import Config
from firebrick.targets.cpu import measured_runs, measuring, processor
from firebrick.targets.cpu.cpu_target import detect

SHAPES = (
    *("128x768x768", "128x768x3072", "128x3072x768", "197x768x768", "197x768x3072", "197x3072x768", "128x768x50257"),
    *("16x768x3072", "1x768x768", "1x768x3072", "1x4096x4096", "8x2048x2048", "256x1024x4096", "512x512x512"),
    *("1024x1024x1024", "2048x512x512", "49x512x2048", "3136x64x256", "196x1024x256", "64x384x1536"),
)
"""BERT's, ViT's and GPT-2's; decoding; squares; convolutions of single pixels."""


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="most that is spent on a shape")
    parser.add_argument("--cpu-time", action="store_true", help="count the process's own time")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    measuring._SECONDS, measuring._AGREE, measuring._BEHIND = given.seconds, float("inf"), float("inf")
    measuring._ROUNDS = 9, 99
    clock = time.process_time if given.cpu_time else time.perf_counter
    measuring.race = partial(measuring.race, clock=clock)  # type: ignore[assignment]
    config, dtype = Config.from_env().with_options({"threads": given.threads}), getattr(torch, given.dtype)
    target, columns = detect(config), ("own", "dots", "panels", "packed", "mkl", "call")
    print(f"{processor.processor()}; {target.simd}, {given.threads} threads, {dtype}, torch {torch.__version__}, "
          f"Python {platform.python_version()}\n")  # fmt: skip
    print(f"| shape | {' | '.join(columns)} | chosen |\n|{'---|' * (len(columns) + 2)}")
    for shape in given.shapes:
        rows, inner, outer = map(int, shape.split("x"))
        x, weight = torch.empty(rows, inner, dtype=dtype), torch.empty(outer, inner, dtype=dtype).t()
        names = [c.name for c in target.choices("aten::mm", (x, weight))]
        times = measuring.measure(
            target, config, "aten::mm", (x, weight), {n: int(n in ("mkl", "call")) for n in names}
        )
        products = math.prod(measured_runs.sample(target, x, weight))
        cells = [f"{2e-9 * products / times[n]:.0f}" if n in times else "" for n in columns]
        print(f"| {shape} | {' | '.join(cells)} | {min(times, key=times.__getitem__) if times else names[0]} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
