"""One side of a benchmark, in its own process: reads commands as JSON lines, answers as JSON lines.

Each contender has a process of its own, so that its compile starts cold, its hooks can't disturb the
others, and the parent can run all of them in turn.
"""

from __future__ import annotations

import copy
import gc
import importlib
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

_STARTED = time.perf_counter()

import torch  # noqa: E402  (the import is timed)

import firebrick  # noqa: E402
from firebrick.tools.models import build_model, load_target  # noqa: E402

_IMPORTED = time.perf_counter() - _STARTED

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CONTENDERS", "flatten", "main"]


def _torchscript(model: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
    traced = torch.jit.trace(model, example_kwarg_inputs=kwargs, strict=False)
    return torch.jit.optimize_for_inference(torch.jit.freeze(traced))


def _onnxruntime(model: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
    onnxruntime = importlib.import_module("onnxruntime")
    path = os.path.join(tempfile.mkdtemp(prefix="firebrick-onnx-"), "model.onnx")
    torch.onnx.export(model, (), path, kwargs=kwargs, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def call(**inputs: Any) -> list[torch.Tensor]:
        feed = dict(zip(names, (t.numpy() for t in flatten(inputs)), strict=True))
        return [torch.from_numpy(a) for a in session.run(None, feed)]

    return call


def _openvino(model: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
    openvino = importlib.import_module("openvino")
    traced = torch.jit.trace(model, example_kwarg_inputs=kwargs, strict=False)
    hint = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = openvino.compile_model(openvino.convert_model(traced, example_input=kwargs), "CPU", hint)

    def call(**inputs: Any) -> list[torch.Tensor]:
        results = compiled([t.numpy() for t in flatten(inputs)])
        return [torch.from_numpy(a) for a in results.values()]

    return call


CONTENDERS: Mapping[str, Callable[[Any, dict[str, Any]], Callable[..., Any]]] = {
    "eager": lambda model, kwargs: model,
    "firebrick": lambda model, kwargs: firebrick.compile(model),
    "torch.compile": lambda model, kwargs: torch.compile(model),
    "torch.compile(freezing)": lambda model, kwargs: torch.compile(model, options={"freezing": True}),
    "torchscript": _torchscript,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "null": lambda model, kwargs: firebrick.compile(model, backend="eager"),
    "torch.compile(eager)": lambda model, kwargs: torch.compile(model, backend="eager"),
}
"""Name -> how to compile (module, keyword arguments of a call)."""


def flatten(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for item in value.values() for t in flatten(item)]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in flatten(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return [t for item in vars(value).values() for t in flatten(item)]
    return []


def relative_error(got: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    """Largest over outputs of max|got - reference| / max|reference|, in float64."""
    worst = 0.0
    for a, b in zip(got, reference, strict=True):
        if b.numel() == 0:
            continue
        scale = b.double().abs().max().clamp_min(1e-30)
        worst = max(worst, float((a.double() - b.double()).abs().max() / scale))
    return worst


_COPIED = 1 << 26
"""Bytes of a copy that measures the memory's bandwidth."""


class Contender:
    """The state of one process: a built model and its compiled form."""

    def __init__(self) -> None:
        self.call: Callable[[], Any] = lambda: None
        self.call_fresh = self.call

    def setup(self, model: str, contender: str, sizes: dict[str, Any]) -> dict[str, Any]:
        """Build the model and wrap it; nothing is compiled yet."""
        if ":" in model:
            fn, args, kwargs = load_target(model)
        else:
            fn, kwargs = build_model(model, **sizes)
            args = ()
        given = copy.deepcopy((args, kwargs))  # a program may write its inputs, and tracing runs it
        compiled = CONTENDERS[contender](fn, kwargs)
        self.fn, self.args, self.kwargs = fn, args, kwargs
        self.call = lambda: compiled(*args, **kwargs)
        self.call_fresh = lambda: compiled(*copy.deepcopy(given[0]), **copy.deepcopy(given[1]))
        return {"import_s": _IMPORTED}

    def first(self) -> dict[str, Any]:
        """Make the first call, which compiles."""
        start = time.perf_counter()
        self.result = self.call()
        return {"seconds": time.perf_counter() - start, "stats": firebrick.stats()}

    def reference(self, path: str) -> dict[str, Any]:
        """Write the model's float64 result to `path`."""
        double = self.fn.double() if isinstance(self.fn, torch.nn.Module) else self.fn
        wide = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v  # noqa: E731
        args, kwargs = torch.utils._pytree.tree_map(wide, (self.args, self.kwargs))
        torch.save(flatten(double(*args, **kwargs)), path)
        return {}

    def error(self, path: str) -> dict[str, Any]:
        """Compare the latest result with the float64 result at `path`."""
        return {"error": relative_error(flatten(self.call_fresh()), torch.load(path))}

    def copy(self, seconds: float) -> dict[str, Any]:
        """What memory takes for the bytes that the call must read and write at least, in seconds, by copies.

        Each copies an array far larger than the caches, into memory that is there or (`fresh`) into new memory, as a
        call that returns a new tensor does; its time is scaled to those bytes.
        """
        given, made = ({t.data_ptr(): t.nbytes for t in flatten(v)} for v in ((self.args, self.kwargs), self.result))
        traffic = sum(given.values()) + sum(made.values())
        source = torch.ones(_COPIED // 4)
        into = source.clone()
        times: dict[str, list[float]] = {"there": [], "fresh": []}
        end = time.perf_counter() + seconds
        while len(times["there"]) < 5 or time.perf_counter() < end:
            for kind, found in times.items():
                start = time.perf_counter()
                if kind == "there":
                    into.copy_(source)
                else:
                    source.clone()
                found.append((time.perf_counter() - start) * traffic / (2 * _COPIED))
        return {**times, "bytes": traffic}

    def time(self, seconds: float, least: int) -> dict[str, Any]:
        """Call for about `seconds`, at least `least` times; one time a call, in seconds.

        One call before them is not counted: in it threads of the process before may still spin.
        """
        times: list[float] = []
        gc.collect()
        self.call()
        end = time.perf_counter() + seconds
        while len(times) < least or time.perf_counter() < end:
            start = time.perf_counter()
            self.call()
            times.append(time.perf_counter() - start)
        return {"times": times, "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> None:
    """Serve commands until standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    contender = Contender()
    with torch.no_grad():
        for line in sys.stdin:
            request = json.loads(line)
            try:
                answer = getattr(contender, request.pop("do"))(**request)
            except Exception as error:  # noqa: BLE001  (the parent reports it as this contender's result)
                answer = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            out.write(json.dumps(answer) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
