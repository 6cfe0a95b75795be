"""Apache TVM as a subgraph compiler, and as the backend `tvm`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from firebrick.backends.engines import engine_backend
from firebrick.backends.onnx_graph import LOOKUPS, library, onnx_refuses, to_onnx
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
    """Runs groups of ATen ops compiled by TVM's Relax, its loops scheduled below."""

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


_COLUMNS, _LANES, _ROWS = 64, 16, 4
"""Of a tile whose sums stay in registers: 4 rows of 64 columns; 16 columns where there are fewer than 64."""
_PARALLEL = 4096
"""Elements from which a loop without reductions is spread over threads."""
_SPATIAL, _REDUCTION = 0, 2
"""TVM's IterVar kinds (DataPar, CommReduce)."""


def scheduled(library: Any, module: Any) -> Any:
    """The module with each of its loop nests scheduled; a nest that the rule does not fit stays as it is.

    library: `tvm.s_tir` (apache-tvm 0.27 and later).
    """
    for name, function in module.functions_items():
        if function.__class__.__name__ != "PrimFunc":
            continue
        schedule = library.Schedule(function)
        for block in schedule.get_child_blocks(schedule.get_sblock("root")):
            try:
                _block(schedule, block)
            except library.ScheduleError:
                continue  # each step by itself keeps the meaning, so what was done before it may stay
        module[name] = schedule.mod["main"].with_attr("tirx.is_scheduled", True)
    return module


def _block(schedule: Any, block: Any) -> None:
    loops, axes = schedule.get_loops(block), schedule.get(block).iter_vars
    kinds = [int(axis.iter_type) for axis in axes]
    sizes = [getattr(schedule.get(loop).extent, "value", 0) for loop in loops]  # 0: not known, or nothing to do
    if len(loops) != len(kinds) or not all(sizes) or not set(kinds) <= {_SPATIAL, _REDUCTION}:
        return
    spatial = [(loop, size) for loop, size, kind in zip(loops, sizes, kinds, strict=True) if kind == _SPATIAL]
    summed = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == _REDUCTION]
    if not spatial:
        return
    if not summed:
        _pointwise(schedule, spatial)
    elif spatial[-1][1] >= _LANES:
        _tiled(schedule, block, spatial, summed)
    else:
        schedule.reorder(*(loop for loop, _ in spatial), *summed)
        schedule.parallel(_fused(schedule, [loop for loop, _ in spatial]))


def _fused(schedule: Any, loops: list[Any]) -> Any:
    return schedule.fuse(*loops) if len(loops) > 1 else loops[0]


def _pointwise(schedule: Any, spatial: list[tuple[Any, int]]) -> None:
    count = 1
    for _, size in spatial:
        count *= size
    if count >= _PARALLEL:
        outer, inner = schedule.split(_fused(schedule, [loop for loop, _ in spatial]), [None, _COLUMNS])
        schedule.parallel(outer)
        schedule.vectorize(inner)


def _tiled(schedule: Any, block: Any, spatial: list[tuple[Any, int]], summed: list[Any]) -> None:
    """Matmuls and the like: a tile's sums are kept in a local buffer and written once."""
    *before, (last, columns) = spatial
    outer = [loop for loop, _ in before]
    column, lane = schedule.split(last, [None, _COLUMNS if columns >= _COLUMNS else _LANES])
    rows = []
    if before and before[-1][1] >= _ROWS:
        row, inner = schedule.split(outer.pop(), [None, _ROWS])
        outer, rows = [*outer, row], [inner]
    schedule.reorder(*outer, column, *summed, *rows, lane)
    sums = schedule.cache_write(block, 0, "local")
    schedule.reverse_compute_at(sums, column)
    schedule.parallel(_fused(schedule, [*outer, column]))
    schedule.vectorize(lane)
    for inner in rows:
        schedule.unroll(inner)
    schedule.decompose_reduction(block, summed[0])
    schedule.vectorize(schedule.get_loops(sums)[-1])
