"""Runs schedules: kernels are compiled with the machine's C++ compiler and called through ctypes, library calls are
made by the interpreter. Memory is laid out as the schedule says, so its plan is tested too."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tests.ir.interp import _Machine

from firebrick.config import Config
from firebrick.fuse import schedule
from firebrick.ir.index.expr import as_int
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Extern
from firebrick.runtime.build import find_compiler
from firebrick.targets.cpu.cpu_target import CpuTarget, detect
from firebrick.targets.cpu.units import flags_of, kernel_units

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from firebrick.ir.kernels.schedule import Schedule
    from firebrick.ir.loops.program import Buffer, LoopProgram


def build(sources: Sequence[str], target: CpuTarget) -> list[ctypes.CDLL]:
    """Compile and load translation units."""
    compiler = find_compiler(Config())
    loaded = []
    for source in sources:
        folder = Path(tempfile.mkdtemp())
        (folder / "unit.cpp").write_text(source)
        command = compiler.line("unit.cpp", (*flags_of(source), *target.flags), "unit.so")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]
        loaded.append(ctypes.CDLL(str(folder / "unit.so")))
        shutil.rmtree(folder)
    return loaded


class Runner:
    """A schedule that can be called."""

    def __init__(self, program: LoopProgram, config: Config | None = None) -> None:
        config = config or Config()
        self.target = detect(config)
        self.schedule: Schedule = schedule(program, {"cpu": self.target}, config)
        self.program = self.schedule.program
        self.sources = kernel_units(self.schedule, self.target, config)
        self.functions: dict[str, Any] = {}
        for library in build(self.sources, self.target):
            for kernel in self.schedule.kernels:
                if hasattr(library, kernel.name):
                    self.functions[kernel.name] = getattr(library, kernel.name)

    def __call__(self, inputs: Sequence[torch.Tensor], constants: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
        """Run with these inputs."""
        given = dict(zip(self.program.inputs, inputs, strict=True))
        given.update((name, constants[name]) for name in self.program.consts)
        machine = _Machine(self.program, given)
        machine.filled.update(b.name for b in self.program.buffers)
        for call in self.program.recipe.calls:
            machine.call(call)
        arena = torch.full((self.schedule.arena_bytes + 64,), 0xFF, dtype=torch.uint8)
        start = -arena.data_ptr() % 64
        for place in self.schedule.places:
            if place.where == "arena":
                b = machine.buffers[place.buffer]
                assert start + place.offset + place.nbytes <= arena.numel()
                machine.tensors[place.buffer] = _view(arena, start + place.offset, b)
        for k, step in enumerate(self.schedule.steps):
            if isinstance(step, Extern):
                machine.call(step)
            else:
                args = (ctypes.c_void_p * len(step.args))(*[machine.tensor(a).data_ptr() for a in step.args])
                sizes = (ctypes.c_int64 * max(1, len(step.sizes)))(*[as_int(s) for s in step.sizes])
                self.functions[step.kernel](args, sizes)
            for name in self.schedule.free_after[k]:
                del machine.tensors[name]
        return tuple(machine.argument(out) for out in self.program.outputs)


def _view(arena: torch.Tensor, offset: int, b: Buffer) -> torch.Tensor:
    shape, strides = [as_int(s) for s in b.shape], [as_int(s) for s in b.strides]
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
    row = DTYPES[b.dtype]
    flat = arena[offset : offset + max(extent, 1) * row.nbytes].view(row.torch)
    return flat.as_strided(shape, strides)
