"""What ops and steps cost apart from time: floating-point operations of matmuls and the like, and bytes moved."""

from __future__ import annotations

import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from firebrick.extend.verify import copies_of
from firebrick.ir.graph.calls import tensors_in
from firebrick.ir.kernels.schedule import Launch, Schedule, refs_in
from firebrick.ir.kernels.tree import Loop, Stmt
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Extern

aten = torch.ops.aten

_LOOKUPS = {aten.embedding, aten.index_select, aten.gather, aten.index}
"""Ops that read as many elements of their first argument as they return."""


@dataclass(slots=True)
class Cost:
    """Of all calls of one op. flops: of matmuls, convolutions and attention. nbytes: read and written."""

    calls: int = 0
    flops: int = 0
    nbytes: int = 0


class CostMode(TorchDispatchMode):
    """Notes the cost of each op that is dispatched while it is on, and how much memory is alive at most."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: dict[str, Cost] = defaultdict(Cost)
        self.alive: Counter[int] = Counter()
        self.now = self.peak = self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the op and note it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.is_view or func.namespace == "prim":
            return out
        name = func._schema.name
        cost, results = self.costs[name], list(tensors_in(out))
        operands = list(tensors_in((args, kwargs)))
        read = sum(map(_nbytes, operands[1:] if func.overloadpacket in _LOOKUPS else operands))
        written = sum(map(_nbytes, results))
        cost.calls += 1
        cost.nbytes += read + written * (2 if func.overloadpacket in _LOOKUPS else 1)
        flops = _flops(func, args, kwargs, out)
        cost.flops += flops
        self.flops += flops
        for tensor in results:
            self._born(tensor)
        return out

    def _born(self, tensor: torch.Tensor) -> None:
        """Count a tensor's memory until the last tensor that was seen to own it dies."""
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        if not key or tensor.device.type == "meta":
            return
        if not self.alive[key]:
            self.now += size
            self.peak = max(self.peak, self.now)
        self.alive[key] += 1
        weakref.finalize(tensor, self._died, key, size)

    def _died(self, key: int, size: int) -> None:
        self.alive[key] -= 1
        if not self.alive[key]:
            self.now -= size


def _nbytes(tensor: torch.Tensor) -> int:
    """Bytes that a tensor shows; expanded axes are one element."""
    sizes = (
        [n for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s] if tensor.layout is torch.strided else ()
    )
    return math.prod(sizes) * tensor.element_size()


def _flops(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    packet = func.overloadpacket
    if packet is aten._scaled_dot_product_flash_attention_for_cpu:
        return int(sdpa_flop_count(*(a.shape for a in args[:3])))
    count: Callable[..., int] | None = flop_registry.get(packet)
    return int(count(*args, **kwargs, out_val=out)) if count is not None else 0


class _Counting(fx.Interpreter):
    def __init__(self, gm: fx.GraphModule, mode: CostMode) -> None:
        super().__init__(gm)
        self.mode, self.flops = mode, [0] * len(gm.graph.nodes)
        self.place = {node: i for i, node in enumerate(gm.graph.nodes)}

    def run_node(self, n: fx.Node) -> Any:
        before = self.mode.flops
        result = super().run_node(n)
        self.flops[self.place[n]] = self.mode.flops - before
        return result


def node_flops(gm: fx.GraphModule, inputs: Sequence[Any]) -> list[int]:
    """Floating-point operations of each node of a graph, by running it."""
    with CostMode() as mode, torch.no_grad():
        counting = _Counting(gm, mode)
        counting.run(*copies_of(inputs))
    return counting.flops


def step_bytes(schedule: Schedule) -> list[int]:
    """Bytes that each step of a schedule reads and writes; symbolic sizes count as one."""
    buffers = {b.name: b for b in schedule.program.buffers}
    kernels = {k.name: k for k in schedule.kernels}

    def whole(name: str) -> int:
        return math.prod(_const(n) for n in buffers[name].shape) * DTYPES[buffers[name].dtype].nbytes

    def launched(step: Launch) -> int:
        # A lookup reads no more of a table than its loops have iterations.
        loops = kernels[step.kernel].loops
        most = _iterations(loops) if loops else math.inf
        return sum(int(min(whole(name), most * DTYPES[buffers[name].dtype].nbytes)) for name in step.args)

    def called(step: Extern) -> int:
        refs = [r for r in refs_in((step.args, step.kwargs)) if r.buffer in buffers]
        new = sum(whole(name) for name in step.outs if name is not None)
        if getattr(torch.ops.aten, step.op.partition("::")[2].partition(".")[0], None) in _LOOKUPS:
            return 2 * new
        return new + sum(math.prod(_const(n) for n in r.shape) * DTYPES[buffers[r.buffer].dtype].nbytes for r in refs)

    return [called(s) if isinstance(s, Extern) else launched(s) for s in schedule.steps]


def peak_bytes(schedule: Schedule) -> int:
    """Bytes that results of a schedule take at most: its arena, and the tensors that it or its library calls make."""
    sizes = {b.name: math.prod(_const(n) for n in b.shape) * DTYPES[b.dtype].nbytes for b in schedule.program.buffers}
    own = {p.buffer for p in schedule.places if p.where in ("fresh", "call")}
    alive: set[str] = set()
    most = 0
    for i, step in enumerate(schedule.steps):
        outs = [n for n in step.outs if n is not None] if isinstance(step, Extern) else step.args
        alive |= own & set(outs)
        most = max(most, sum(map(sizes.__getitem__, alive)))
        alive -= set(schedule.free_after[i])
    return schedule.arena_bytes + most


def _const(size: Any) -> int:
    return size if isinstance(size, int) else size.const if size.is_const else 1


def _iterations(body: tuple[Stmt, ...]) -> int:
    return max((_const(s.axis.size) * _iterations(s.body) for s in body if isinstance(s, Loop)), default=1)
