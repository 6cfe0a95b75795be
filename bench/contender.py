"""Every contender for CPUs, in a process of its own; and what memory takes for the bytes that a call moves."""

from __future__ import annotations

import importlib
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

import torch

import firebrick
from bench import programs
from firebrick.tools import bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from firebrick.tools.subject import Target

__all__ = ["CONTENDERS", "Contender"]


def freezing(model: Any, kwargs: dict[str, Any], backend: str = "inductor") -> Callable[..., Any]:
    """In a process of its own: where only a call's options ask for it, weights are arguments and nothing is frozen."""
    config: Any = importlib.import_module("torch._inductor.config")
    config.freezing = True
    return torch.compile(model, backend=backend)


def _torchscript(model: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
    traced = torch.jit.trace(model, example_kwarg_inputs=kwargs, strict=False)
    return torch.jit.optimize_for_inference(torch.jit.freeze(traced))


def onnxruntime_call(model: Any, kwargs: dict[str, Any]) -> Callable[..., Any]:
    """What runs the module's ONNX export."""
    onnxruntime = importlib.import_module("onnxruntime")
    path = os.path.join(tempfile.mkdtemp(prefix="firebrick-onnx-"), "model.onnx")
    torch.onnx.export(model, (), path, kwargs=kwargs, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    def call(**inputs: Any) -> list[torch.Tensor]:
        feed = dict(zip(names, (t.numpy() for t in _tensors(inputs)), strict=True))
        return [torch.from_numpy(a) for a in session.run(None, feed)]

    return call


def openvino_call(model: Any, kwargs: dict[str, Any], precision: str = "f32") -> Callable[..., Any]:
    """What runs a float32 module, computing in another precision where the machine has it."""
    openvino = importlib.import_module("openvino")
    traced = torch.jit.trace(model, example_kwarg_inputs=kwargs, strict=False)
    hint = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": torch.get_num_threads()}
    compiled = openvino.compile_model(openvino.convert_model(traced, example_input=kwargs), "CPU", hint)

    def call(**inputs: Any) -> list[torch.Tensor]:
        results = compiled([t.numpy() for t in _tensors(inputs)])
        return [torch.from_numpy(a) for a in results.values()]

    return call


def _tensors(inputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


_COPIED = 1 << 26
"""Bytes of a copy that measures the memory's bandwidth."""


class Contender(bench.Contender):
    """Knows more contenders and the programs of this folder."""

    KINDS = {  # noqa: RUF012
        **bench.Contender.KINDS,
        "torch.compile(freezing)": freezing,
        "zentorch": lambda model, kwargs: freezing(model, kwargs, importlib.import_module("zentorch").__name__),
        "torchscript": _torchscript,
        "onnxruntime": onnxruntime_call,
        "openvino": openvino_call,
        "null": lambda model, kwargs: firebrick.compile(model, backend="eager"),
        "torch.compile(eager)": lambda model, kwargs: torch.compile(model, backend="eager"),
    }

    def load(self, name: str, **sizes: Any) -> Target:
        return programs.load(name, **sizes)

    def copy(self, seconds: float) -> dict[str, Any]:
        """What memory takes for the bytes that the call must read and write at least, in seconds, by copies.

        Each copies an array far larger than the caches, into memory that is there or (`fresh`) into new memory, as a
        call that returns a new tensor does; its time is scaled to those bytes.
        """
        inputs, results = _tensors((self.target.args, self.target.kwargs)), _tensors(self.result)
        traffic = sum(sum({t.data_ptr(): t.nbytes for t in side}.values()) for side in (inputs, results))
        source = torch.ones(_COPIED // 4)
        into = source.clone()
        times: dict[str, list[float]] = {"there": [], "fresh": []}
        end = time.perf_counter() + seconds
        while len(times["there"]) < 5 or time.perf_counter() < end:
            for kind, row in times.items():
                start = time.perf_counter()
                if kind == "there":
                    into.copy_(source)
                else:
                    source.clone()
                row.append((time.perf_counter() - start) * traffic / (2 * _COPIED))
        return {**times, "bytes": traffic}


CONTENDERS = Contender.KINDS
"""Name -> how to compile (module, keyword arguments of a call)."""
