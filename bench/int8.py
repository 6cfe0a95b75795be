"""int8 models and linear layers beside ONNX Runtime's, OpenVINO's, torch.ao's and torchao's:
`python -m bench.int8 [CASE ...]`.

A case is a model's name or ROWSxINNERxOUTER. Each takes float32 and gives float32; weights have a scale an output.
Dynamic ones quantize activations as they come; static ones by ranges of the same inputs, as our convolutions do.
Contenders take turns; the figures are medians, of the process's own time with `--cpu-time --threads 1`, which tells
more on a busy machine. error: the largest difference from float32 by the largest result; same: results whose largest
value along the last dimension is at the same place. torch.ao's static layers are those of eager mode, each behind a
rounding to bytes and before one back to numbers.
"""

from __future__ import annotations

import argparse
import contextlib
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
from bench import turns
from firebrick.targets.cpu import processor
from firebrick.tools.models import build_model

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = ("128x768x768", "128x768x3072", "128x3072x768", "1x768x3072", "16x768x3072", "512x512x512", "1024x1024x1024")


class _Samples:
    """What ONNX Runtime reads ranges from: one call's inputs."""

    def __init__(self, arrays: dict[str, Any]) -> None:
        self.left = [arrays]

    def get_next(self) -> dict[str, Any] | None:
        """The next call's inputs."""
        return self.left.pop() if self.left else None


def engines(model: nn.Module, inputs: dict[str, Any], threads: int, dynamic: bool) -> dict[str, Callable[..., Any]]:
    """Sessions of ONNX Runtime and OpenVINO with int8 products."""
    ort, tools = importlib.import_module("onnxruntime"), importlib.import_module("onnxruntime.quantization")
    runs: dict[str, Callable[..., Any]] = {}
    with tempfile.TemporaryDirectory(prefix="firebrick-onnx-") as folder:
        plain, ready, path = (os.path.join(folder, f"{name}.onnx") for name in ("plain", "ready", "int8"))
        torch.onnx.export(model, (), plain, kwargs=inputs, dynamo=True, verbose=False, external_data=False)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads

        def session(file: str) -> Any:
            return ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])

        arrays = dict(zip((i.name for i in session(plain).get_inputs()), (x.numpy() for x in inputs.values())))  # noqa: B905
        if dynamic:
            tools.quantize_dynamic(plain, path, weight_type=tools.QuantType.QInt8)
            run = session(path).run
            runs["onnxruntime dynamic"] = lambda run=run: torch.from_numpy(run(None, arrays)[0])
        tools.shape_inference.quant_pre_process(plain, ready, skip_symbolic_shape=True)
        how = {"per_channel": True, "op_types_to_quantize": ["MatMul", "Gemm", "Conv"]}
        tools.quantize_static(ready, path, _Samples(arrays), quant_format=tools.QuantFormat.QDQ, **how)
        run = session(path).run
        runs["onnxruntime static"] = lambda run=run: torch.from_numpy(run(None, arrays)[0])
        with contextlib.suppress(ImportError):
            openvino = importlib.import_module("openvino")
            hint = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
            compiled = openvino.compile_model(openvino.Core().read_model(path), "CPU", hint)
            feed = list(arrays.values())
            runs["openvino static"] = lambda: torch.from_numpy(next(iter(compiled(feed).values())))
    return runs


def inductor(model: nn.Module, inputs: dict[str, Any]) -> Callable[..., Any]:
    """torch.compile of what torchao's quantizer for x86 makes, with ranges of the same inputs."""
    pt2e = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
    x86 = importlib.import_module("torchao.quantization.pt2e.quantizer.x86_inductor_quantizer")
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = pt2e.prepare_pt2e(torch.export.export(model, (), inputs).module(), quantizer)
    prepared(**inputs)
    config: Any = importlib.import_module("torch._inductor.config")
    config.freezing = True  # dynamo asks the process, not the call
    return torch.compile(pt2e.convert_pt2e(prepared))


def static(model: nn.Module, inputs: dict[str, Any], quantization: Any) -> nn.Module:
    """torch.ao's static layers, quantized by ranges of the same inputs; batch norms of convolutions are in these."""
    made = copy.deepcopy(model)
    for module in made.modules():
        names = [name for name, _ in module.named_children()]
        if names[:2] == ["convolution", "normalization"]:
            quantization.fuse_modules(module, names[:2], inplace=True)
    for module in made.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            module.qconfig = quantization.get_default_qconfig("x86")  # type: ignore[assignment]
    quantization.add_quant_dequant(made)
    quantization.prepare(made, inplace=True)
    made(**inputs)
    return quantization.convert(made, inplace=True)


def contenders(model: nn.Module, inputs: dict[str, Any], threads: int) -> dict[str, Callable[..., Any]]:
    """What runs the model: float32, int8 by ours, by torch.ao, by torchao if it is there, ONNX Runtime and OpenVINO."""
    quantization = importlib.import_module("torch.ao.quantization")
    ours, options = copy.deepcopy(model), {"threads": threads}
    firebrick.passes.quantize(ours, [inputs], tolerance=math.inf)
    runs: dict[str, Callable[..., Any]]
    runs = {"float32": firebrick.compile(model, options=options), "int8": firebrick.compile(ours, options=options)}
    dynamic = not any(isinstance(m, nn.Conv2d) for m in model.modules())
    if dynamic:
        theirs = quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
        runs |= {"torch.ao": theirs, "torch.ao in firebrick": firebrick.compile(theirs, options=options)}
    theirs = static(model, inputs, quantization)
    runs |= {"torch.ao static": theirs, "torch.ao static in firebrick": firebrick.compile(theirs, options=options)}
    with contextlib.suppress(ImportError):
        runs["torchao + inductor"] = inductor(model, inputs)
    made: dict[str, Callable[..., Any]] = {name: partial(run, **inputs) for name, run in runs.items()}
    return made | engines(model, inputs, threads, dynamic)


def first(out: Any) -> torch.Tensor:
    """The first tensor of a result."""
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
    print(f"| case | contender | ms | GFLOP/s | x float32 | error | same |\n|{'---|' * 7}")
    for case in given.cases:
        torch.manual_seed(0)
        model, inputs, work = _case(case)
        with torch.no_grad():
            runs = contenders(model, inputs, given.threads)
            outs = {name: first(run()) for name, run in runs.items()}
            turns.wait()
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
            same = (outs[name].argmax(-1) == wanted.argmax(-1)).float().mean()
            print(f"| {case} | {name} | {1e3 * ms:.3f} | {rate} | {ratio:.2f} | {error:.1e} | {same:.1%} |", flush=True)
        firebrick.reset()


if __name__ == "__main__":
    main()
