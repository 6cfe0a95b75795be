"""ONNX Runtime as a subgraph compiler, and as the backend `onnxrt`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from firebrick.backends.engines import engine_backend
from firebrick.backends.onnx_graph import library, onnx_refuses, to_onnx
from firebrick.extend import SubgraphCompiler


class _Session:
    """A loaded model: takes and returns CPU tensors without copying them."""

    def __init__(self, model: bytes, threads: int) -> None:
        runtime = library("onnxruntime", 'pip install "firebrick[onnxruntime]"')
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.model = model
        self.session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.inputs = [i.name for i in self.session.get_inputs()]

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arrays = {n: t.detach().contiguous().numpy() for n, t in zip(self.inputs, tensors, strict=True)}
        return tuple(torch.from_numpy(a) for a in self.session.run(None, arrays))


class OnnxRuntime(SubgraphCompiler):
    """Runs groups of ATen ops in ONNX Runtime."""

    name = "onnxrt"
    devices = frozenset({"cpu"})
    min_size = 3

    def supports(self, node: fx.Node) -> bool | str:
        """Ops that have a row in the ONNX table."""
        return onnx_refuses(node) or True

    def compile(self, graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Write the group as ONNX and make a session of it."""
        return _Session(to_onnx(graph).SerializeToString(), torch.get_num_threads())

    def serialize(self, compiled: Any) -> bytes:
        """The ONNX file."""
        return bytes(compiled.model)

    def deserialize(self, data: bytes, graph: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        """A session of the ONNX file."""
        return _Session(data, torch.get_num_threads())


onnxrt = engine_backend(OnnxRuntime())
