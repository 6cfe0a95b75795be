"""Models in bfloat16 or float16 beside eager's and our float32: `python -m bench.bfloat16 [MODEL ...]`.

Contenders take turns; the figures are medians, of the process's own time with `--cpu-time --threads 1`, which tells
more on a busy machine. error: the largest difference from eager's float32 by its largest result.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import firebrick
from bench.int8 import first
from firebrick.targets.cpu import processor
from firebrick.tools.models import build_model

if TYPE_CHECKING:
    from collections.abc import Callable


def contenders(
    model: torch.nn.Module, inputs: dict[str, Any], inductor: bool, name: str = "bfloat16"
) -> dict[str, Callable[..., Any]]:
    """What runs the model: float32, the dtype and autocast by eager and by us."""
    dtype: torch.dtype = getattr(torch, name)
    half = copy.deepcopy(model).to(dtype)
    narrow = {key: x.to(dtype) if x.is_floating_point() else x for key, x in inputs.items()}

    def cast(run: Callable[..., Any]) -> Any:
        with torch.autocast("cpu", dtype):
            return run(**inputs)

    runs: dict[str, Callable[..., Any]] = {
        "eager float32": partial(model, **inputs),
        "float32": partial(firebrick.compile(model), **inputs),
        f"eager {name}": partial(half, **narrow),
        name: partial(firebrick.compile(half), **narrow),
        "eager autocast": partial(cast, model),
        "autocast": partial(cast, firebrick.compile(model)),
    }
    if inductor:
        runs[f"torch.compile {name}"] = partial(torch.compile(half), **narrow)
    return runs


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=("bert", "vit", "resnet50"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--inductor", action="store_true", help="torch.compile too, which takes half a minute a model")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.cpu_time else time.perf_counter
    print(f"{processor.processor()}; {given.threads} threads, {given.rounds} rounds, torch {torch.__version__}\n")
    print("| model | contender | ms | x eager float32 | error |\n|---|---|---|---|---|")
    for name in given.models:
        model, inputs = build_model(name)
        with torch.no_grad():
            runs = contenders(model, inputs, given.inductor, given.dtype)
            outs = {key: first(run()).float() for key, run in runs.items()}
            times: dict[str, list[float]] = {key: [] for key in runs}
            for _ in range(given.rounds):
                for key, run in runs.items():
                    run()
                    start = clock()
                    run()
                    times[key].append(clock() - start)
        wanted, base = outs["eager float32"], times["eager float32"]
        for key, seconds in times.items():
            error = (outs[key] - wanted).abs().max() / wanted.abs().max()
            ratio = statistics.median(f / s for f, s in zip(base, seconds, strict=True))
            print(
                f"| {name} | {key} | {1e3 * statistics.median(seconds):.1f} | {ratio:.2f} | {error:.1e} |", flush=True
            )
        firebrick.reset()


if __name__ == "__main__":
    main()
