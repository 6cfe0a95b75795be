"""Apache TVM as a subgraph compiler, and as the backend `tvm`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from firebrick.backends.engines import engine_backend
from firebrick.backends.onnx_graph import LOOKUPS, library, onnx_refuses, to_onnx
from firebrick.backends.tvm_schedule import scheduled
from firebrick.extend import SubgraphCompiler, call_of

_LACKING = frozenset({"max_pool2d_with_indices", "isnan", "hardswish"})
"""Ops that TVM's reader of ONNX does not take in the form that we write."""


def _library(name: str = "tvm") -> Any:
    return library(name, 'pip install "firebrick[tvm]"')


def _this_machine() -> dict[str, Any]:
    cpu = _library("tvm.target.codegen").llvm_get_system_cpu()
    return {"kind": "llvm", "num-cores": torch.get_num_threads(), "mcpu": cpu}


class _Machine:
    """A module of TVM's virtual machine; tensors go in and out by DLPack."""

    def __init__(self, executable: Any) -> None:
        relax, tvm_ = _library("tvm.relax"), _library()
        self.vm = relax.VirtualMachine(executable, tvm_.cpu())
        self.convert = _library("tvm.runtime").from_dlpack if hasattr(_library("tvm.runtime"), "from_dlpack") else None

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        arguments = [self._enter(t.detach().contiguous()) for t in tensors]
        result = self.vm["main"](*arguments)
        parts = result if hasattr(result, "__len__") and not hasattr(result, "shape") else [result]
        return tuple(torch.utils.dlpack.from_dlpack(parts[i]) for i in range(len(parts)))

    def _enter(self, tensor: torch.Tensor) -> Any:
        if tensor.dtype == torch.bool:
            return _library("tvm.runtime").tensor(tensor.numpy())
        return self.convert(tensor) if self.convert is not None else _library("tvm_ffi").from_dlpack(tensor)


class Tvm(SubgraphCompiler):
    """Runs groups of ATen ops compiled by TVM's Relax, its loops scheduled by `tvm_schedule`."""

    name = "tvm"
    devices = frozenset({"cpu"})
    dtypes = frozenset({torch.float32, torch.int64, torch.int32, torch.bool})
    min_size = 3
    tolerance = 1e-3

    def __init__(self, target: str = "") -> None:
        self.target = target

    def supports(self, node: fx.Node) -> bool | str:
        """Ops that have a row in the ONNX table, less those that TVM lacks."""
        call = call_of(node)
        if call is not None and call.name in _LACKING:
            return "TVM does not read it"
        if call is not None and call.name in LOOKUPS:
            return "TVM does not check its indices"
        return onnx_refuses(node) or True

    def compile(self, graph: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., Any]:
        """Write the group as ONNX, read it into Relax, lower and build it."""
        tvm_, relax = _library(), _library("tvm.relax")
        reader = _library("tvm.relax.frontend.onnx")
        module = reader.from_onnx(to_onnx(graph), keep_params_in_input=False)
        target = tvm_.target.Target(self.target or _this_machine())
        with target:
            module = relax.get_pipeline("zero")(module)
            if target.kind.name == "llvm":
                module = scheduled(_library("tvm.s_tir"), module)
            return _Machine(relax.build(module, target=target))


tvm = engine_backend(Tvm())
