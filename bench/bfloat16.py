"""Models in bfloat16 or float16 beside eager's and our float32: `python -m bench.bfloat16 [MODEL ...]`.

Contenders take turns, each for a share of a second; the figures are medians of all calls and the best one, of the
process's own time with `--cpu-time --threads 1`, which tells more on a busy machine. `--peers` adds OpenVINO and
torch.compile with freezing in the dtype, and ONNX Runtime in float32: a minute of compiling a model. error: the largest
difference from eager's float32 by its largest result; same: results whose largest value along the last dimension is at
the same place.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import firebrick
from bench import turns
from bench.contender import freezing, onnxruntime_call, openvino_call
from bench.int8 import first
from firebrick.targets.cpu import processor
from firebrick.tools.models import build_model

if TYPE_CHECKING:
    from collections.abc import Callable


def contenders(model: torch.nn.Module, inputs: dict[str, Any], name: str, peers: bool) -> dict[str, Callable[..., Any]]:
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
    if peers:
        precision = {"bfloat16": "bf16", "float16": "f16"}[name]
        makers: dict[str, Callable[[], Any]] = {
            f"openvino {name}": lambda: partial(openvino_call(model, inputs, precision), **inputs),
            "onnxruntime float32": lambda: partial(onnxruntime_call(model, inputs), **inputs),
            f"torch.compile(freezing) {name}": lambda: partial(freezing(half, narrow), **narrow),
        }
        for peer, make in makers.items():
            try:
                runs[peer] = make()
                runs[peer]()
            except Exception as error:  # noqa: BLE001 - an engine without this model
                runs.pop(peer, None)
                print(f"{peer} failed: {type(error).__name__}: {error}"[:200], file=sys.stderr)
    return runs


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=("bert", "vit", "resnet50"))
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16"))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a contender's turn; at least two calls")
    parser.add_argument("--peers", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.cpu_time else time.perf_counter
    print(f"{processor.processor()}; {given.threads} threads, {given.rounds} rounds, torch {torch.__version__}\n")
    print(f"| model | contender | ms | best ms | x eager float32 | error | same |\n|{'---|' * 7}")
    for name in given.models:
        model, inputs = build_model(name)
        with torch.no_grad():
            runs = contenders(model, inputs, given.dtype, given.peers)
            outs = {key: first(run()).float() for key, run in runs.items()}
            turns.wait()
            times: dict[str, list[float]] = {key: [] for key in runs}
            for _ in range(given.rounds):
                for key, run in runs.items():
                    run()
                    end = time.perf_counter() + given.seconds
                    while True:
                        start = clock()
                        run()
                        times[key].append(clock() - start)
                        if time.perf_counter() >= end:
                            break
        wanted, base = outs["eager float32"], times["eager float32"]
        for key, seconds in times.items():
            error = (outs[key] - wanted).abs().max() / wanted.abs().max()
            middle, best = 1e3 * statistics.median(seconds), 1e3 * min(seconds)
            same = (outs[key].argmax(-1) == wanted.argmax(-1)).double().mean()
            ratio = 1e3 * statistics.median(base) / middle
            print(
                f"| {name} | {key} | {middle:.1f} | {best:.1f} | {ratio:.2f} | {error:.1e} | {same:.1%} |", flush=True
            )
        firebrick.reset()


if __name__ == "__main__":
    main()
