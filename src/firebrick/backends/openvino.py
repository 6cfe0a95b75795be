"""OpenVINO as a subgraph compiler, and as the backend `openvino`."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from firebrick.backends.engines import engine_backend
from firebrick.backends.onnx_graph import LOOKUPS, library, onnx_refuses, to_onnx
from firebrick.extend import SubgraphCompiler, call_of


def _core() -> Any:
    return library("openvino", 'pip install "firebrick[openvino]"').Core()


def _settings() -> dict[str, Any]:
    # float32 stays float32: the engine would take bfloat16 on chips that have it.
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }


class _Model:
    """A compiled model; one infer request, so calls of several threads wait for each other."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.request = compiled.create_infer_request()

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arrays = [t.detach().contiguous().numpy() for t in tensors]
        results = self.request.infer(arrays, share_inputs=True, share_outputs=False)
        return tuple(torch.from_numpy(results[i]) for i in range(len(self.compiled.outputs)))


class OpenVino(SubgraphCompiler):
    """Runs groups of ATen ops in OpenVINO on the CPU."""

    name = "openvino"
    devices = frozenset({"cpu"})
    min_size = 3
    tolerance = 1e-3

    def supports(self, node: fx.Node) -> bool | str:
        """Ops that have a row in the ONNX table, less those whose indices OpenVINO does not check."""
        call = call_of(node)
        if call is not None and call.name in LOOKUPS:
            return "OpenVINO does not check its indices"
        return onnx_refuses(node) or True

    def compile(self, graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Write the group as ONNX and compile it."""
        core = _core()
        model = core.read_model(io.BytesIO(to_onnx(graph).SerializeToString()))
        return _Model(core.compile_model(model, "CPU", _settings()))

    def serialize(self, compiled: Any) -> bytes:
        """OpenVINO's own compiled form."""
        stream = io.BytesIO()
        compiled.compiled.export_model(stream)
        return stream.getvalue()

    def deserialize(self, data: bytes, graph: fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        """Load what `serialize` wrote."""
        return _Model(_core().import_model(io.BytesIO(data), "CPU", _settings()))


openvino = engine_backend(OpenVino())
