"""int8 linear layers beside ONNX Runtime's and torch.ao's: `python -m bench.int8 [ROWSxINNERxOUTER | MODEL ...]`.

Each takes float32, quantizes rows or the whole of it as it comes, and gives float32. Contenders take turns; the figures
are medians, of the process's own time with `--cpu-time --threads 1`, which tells more on a busy machine. error: the
largest difference from float32 by the largest result.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import math
import os
import statistics
import tempfile
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import firebrick
from firebrick.targets.cpu import processor
from firebrick.tools.models import build_model

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ("128x768x768", "128x768x3072", "128x3072x768", "1x768x3072", "16x768x3072", "512x512x512", "1024x1024x1024")


def _quantized_onnx(model: nn.Module, inputs: dict[str, Any], threads: int) -> Callable[..., Any]:
    """A session of ONNX Runtime with int8 matmuls, whose activations are quantized as they come."""
    onnxruntime, tools = importlib.import_module("onnxruntime"), importlib.import_module("onnxruntime.quantization")
    folder = tempfile.mkdtemp(prefix="firebrick-onnx-")
    plain, path = os.path.join(folder, "model.onnx"), os.path.join(folder, "int8.onnx")
    torch.onnx.export(model, (), plain, kwargs=inputs, dynamo=True, verbose=False)
    tools.quantize_dynamic(plain, path, weight_type=tools.QuantType.QInt8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    arrays = {name: x.numpy() for name, x in zip(names, inputs.values(), strict=True)}
    return lambda: torch.from_numpy(session.run(None, arrays)[0])


def contenders(model: nn.Module, inputs: dict[str, Any], threads: int) -> dict[str, Callable[..., Any]]:
    """What runs the model: float32, int8 by ours, by torch.ao and by ONNX Runtime."""
    quantization = importlib.import_module("torch.ao.quantization")
    ours = copy.deepcopy(model)
    firebrick.passes.quantize_linear(ours)
    theirs = quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
    runs = {
        "float32": firebrick.compile(model),
        "int8": firebrick.compile(ours),
        "torch.ao": theirs,
        "torch.ao in firebrick": firebrick.compile(theirs),
    }
    made: dict[str, Callable[..., Any]] = {name: partial(run, **inputs) for name, run in runs.items()}
    made["onnxruntime"] = _quantized_onnx(model, inputs, threads)
    return made


def _first(out: Any) -> torch.Tensor:
    while not isinstance(out, torch.Tensor):
        out = next(iter(out.values() if hasattr(out, "values") else out))
    return out


class _Layer(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inner, outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def _case(name: str) -> tuple[nn.Module, dict[str, Any], float]:
    """A model, its inputs, and its multiplications if they are known."""
    if name[0].isdigit():
        rows, inner, outer = sizes = tuple(map(int, name.split("x")))
        return _Layer(inner, outer), {"x": torch.randn(rows, inner)}, math.prod(sizes)
    model, inputs = build_model(name)[:2]
    return model.eval(), dict(inputs), 0


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=SHAPES)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--cpu-time", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.cpu_time else time.perf_counter
    print(f"{processor.processor()}; {given.threads} threads, {given.rounds} rounds, torch {torch.__version__}\n")
    print("| case | contender | ms | GFLOP/s | x float32 | error |\n|---|---|---|---|---|---|")
    for case in given.cases:
        torch.manual_seed(0)
        model, inputs, work = _case(case)
        with torch.no_grad():
            runs = contenders(model, inputs, given.threads)
            outs = {name: _first(run()) for name, run in runs.items()}
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(given.rounds):
                for name, run in runs.items():
                    run()
                    start = clock()
                    run()
                    times[name].append(clock() - start)
        wanted = outs["float32"]
        for name, seconds in times.items():
            ms, error = statistics.median(seconds), (outs[name] - wanted).abs().max() / wanted.abs().max()
            ratio = statistics.median(f / s for f, s in zip(times["float32"], seconds, strict=True))
            rate = f"{2e-9 * work / ms:.0f}" if work else ""
            print(f"| {case} | {name} | {1e3 * ms:.3f} | {rate} | {ratio:.2f} | {error:.1e} |", flush=True)
        firebrick.reset()


if __name__ == "__main__":
    main()
