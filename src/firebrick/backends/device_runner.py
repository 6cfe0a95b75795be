"""Runs a schedule in a target's memory: kernels are launched, library calls are made by its driver."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

from firebrick.errors import CompileError
from firebrick.ir.index.expr import ZERO, Expr
from firebrick.ir.index.number import as_int
from firebrick.ir.loops.bounds import CHECK, check_index
from firebrick.ir.loops.dtypes import DTYPES, enum_value
from firebrick.ir.loops.program import Enum, Extern, Ref
from firebrick.targets.base import View
from firebrick.targets.template_text import lane_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from firebrick.config import Config
    from firebrick.ir.kernels.schedule import Launch, Schedule
    from firebrick.ir.loops.program import Buffer
    from firebrick.targets.base import Target

__all__ = ["DeviceProgram"]


class DeviceProgram:
    """A compiled schedule of fixed sizes. Constants stay in the target's memory; the rest lives for one call.

    texts: what the kernels were compiled from.
    """

    def __init__(
        self, schedule: Schedule, target: Target, constants: Mapping[str, torch.Tensor], config: Config
    ) -> None:
        program = schedule.program
        if program.recipe.calls:
            raise CompileError("constants can't be derived on a device")
        self.schedule, self.program, self.target = schedule, program, target
        self.buffers: dict[str, Buffer] = {b.name: b for b in program.buffers}
        self.texts = target.source(schedule, config)
        self.kernels = target.load(self.texts, [k.name for k in schedule.kernels], config) if self.texts else {}
        self.lanes = {k.name: (k.sizes, lane_count(k)) for k in schedule.kernels}
        self.constants = {name: self._enter(name, constants[name]) for name in program.consts}
        self.last: dict[str, int] = {}
        for i, step in enumerate(schedule.steps):
            self.last.update(dict.fromkeys(_touched(step), i))
        for out in program.outputs:
            if isinstance(out, Ref):
                self.last.pop(out.buffer, None)
        self._lock = threading.Lock()
        weakref.finalize(self, _release, target, tuple(self.constants.values()))

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        """Copy the inputs in, run, and copy the outputs back; one call at a time."""
        with self._lock, torch.no_grad():
            memory = dict(self.constants)
            try:
                for name, tensor in zip(self.program.inputs, inputs, strict=True):
                    memory[name] = self._enter(name, tensor)
                for i, step in enumerate(self.schedule.steps):
                    self._step(step, memory)
                    for name in _touched(step):
                        if self.last.get(name) == i and name not in self.constants:
                            self.target.release(memory.pop(name))
                return tuple(self._leave(out, memory) for out in self.program.outputs)
            finally:
                for name, place in memory.items():
                    if name not in self.constants:
                        self.target.release(place)

    def _step(self, step: Launch | Extern, memory: dict[str, Any]) -> None:
        for name in _touched(step):
            if name not in memory:
                memory[name] = self.target.allocate(self._nbytes(name))
        if isinstance(step, Extern):
            if step.op == CHECK:
                low, high, error, text = (self._argument(a, memory) for a in step.args[1:])
                check_index(self._leave(step.args[0], memory), low, high, error, text)
                return
            outs = [None if out is None else self._view(self._whole(out), memory) for out in step.outs]
            kwargs = {k: self._argument(v, memory) for k, v in step.kwargs}
            self.target.call(step.op, outs, [self._argument(a, memory) for a in step.args], kwargs)
            return
        sizes = [as_int(s) for s in step.sizes]
        names, count = self.lanes[step.kernel]
        lanes = count.evaluate(dict(zip(names, sizes, strict=True)))
        if lanes:
            self.target.launch(self.kernels[step.kernel], [memory[a] for a in step.args], sizes, lanes)

    # ------------------------------------------------------------ memory

    def _extent(self, name: str) -> int:
        b = self.buffers[name]
        shape = _ints(b.shape)
        if 0 in shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(shape, _ints(b.strides), strict=True))

    def _nbytes(self, name: str) -> int:
        return max(1, self._extent(name)) * DTYPES[self.buffers[name].dtype].nbytes

    def _enter(self, name: str, tensor: torch.Tensor) -> Any:
        b = self.buffers[name]
        shape, strides = _ints(b.shape), _ints(b.strides)
        if tuple(tensor.shape) != shape:
            raise CompileError(f"{name} is {tuple(tensor.shape)}, not {shape}")
        if any(n > 1 and s != t for n, s, t in zip(shape, strides, tensor.stride(), strict=True)):
            tensor = torch.empty_strided(shape, strides, dtype=tensor.dtype).copy_(tensor)
        memory = self.target.allocate(self._nbytes(name))
        extent = self._extent(name)
        if extent:
            flat = tensor.detach().as_strided((extent,), (1,), tensor.storage_offset())
            self.target.write(memory, flat)
        return memory

    def _leave(self, out: object, memory: Mapping[str, Any]) -> Any:
        if not isinstance(out, Ref):
            return out
        b = self.buffers[out.buffer]
        flat = torch.empty(self._extent(out.buffer), dtype=DTYPES[b.dtype].torch)
        if flat.numel():
            self.target.read(memory[out.buffer], flat)
        return flat.as_strided(_ints(out.shape), _ints(out.strides), as_int(out.offset))

    def _whole(self, name: str) -> Ref:
        b = self.buffers[name]
        return Ref(name, b.shape, b.strides, ZERO)

    def _view(self, ref: Ref, memory: Mapping[str, Any]) -> View:
        dtype = ref.dtype or self.buffers[ref.buffer].dtype
        return View(memory[ref.buffer], dtype, _ints(ref.shape), _ints(ref.strides), as_int(ref.offset))

    def _argument(self, value: object, memory: Mapping[str, Any]) -> Any:
        if isinstance(value, Ref):
            return self._view(value, memory)
        if isinstance(value, Enum):
            return enum_value(value.kind, value.value)
        if isinstance(value, Expr):
            return as_int(value)
        return [self._argument(v, memory) for v in value] if isinstance(value, tuple) else value


def _release(target: Target, memory: Sequence[Any]) -> None:
    for place in memory:
        target.release(place)


def _touched(step: Launch | Extern) -> list[str]:
    """Buffers that a step reads or writes."""
    if not isinstance(step, Extern):
        return list(dict.fromkeys(step.args))
    found = dict.fromkeys(out for out in step.outs if out is not None)
    stack: list[object] = [*step.args, *(v for _, v in step.kwargs)]
    for value in stack:
        if isinstance(value, Ref):
            found[value.buffer] = None
        elif isinstance(value, tuple):
            stack += value
    return list(found)


def _ints(values: Sequence[Expr]) -> tuple[int, ...]:
    return tuple(as_int(v) for v in values)
