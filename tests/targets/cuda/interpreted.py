"""Runs schedules of tiles on CPU tensors: kernels through Triton's interpreter, library calls by the loops' one.

The interpreter folds with a loop of Python over elements unless it knows the function; here it applies the function to
halves, which tests the function on tensors too. CUDA's math library is replaced by torch's functions.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tests.ir.interp import _Machine

from firebrick.ir.index.expr import as_int
from firebrick.ir.loops.program import Extern
from firebrick.targets.cuda.triton_text import unit_text

AVAILABLE = importlib.util.find_spec("triton") is not None


@contextlib.contextmanager
def interpreting():
    """Kernels that are defined here are interpreted."""
    old = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield
    finally:
        if old is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = old


@lru_cache(maxsize=1)
def _interpreter():
    with interpreting():
        import triton.language as tl
        from triton.runtime import JITFunction, interpreter
    # torch may have imported triton before, for the compiler.
    for module in (tl, tl.standard, tl.math, tl.random):
        for name, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                setattr(module, name, interpreter.InterpretedFunction(value.fn))
    # Kernels run one after the other here: there is nothing to wait for.
    tl.extra.cuda.gdc_wait = tl.extra.cuda.gdc_launch_dependents = lambda: None
    ops = interpreter.ReduceOps, interpreter.ScanOps
    ops[0].generic_reduce, ops[1].generic_scan = _reduce, _scan
    # 16-bit floats: the interpreter cuts bits off where the compiler rounds.
    interpreter.InterpreterBuilder.cast_impl = _cast(interpreter, interpreter.InterpreterBuilder.cast_impl)
    interpreter.InterpreterBuilder.create_dot = _dot(interpreter)
    interpreter.InterpreterBuilder.get_bf16 = _bf16(interpreter)
    interpreter.InterpreterBuilder.create_fabs = lambda self, a: self.unary_op(a, np.abs)
    return tl, interpreter


def _cast(interpreter, plain):
    import triton.language as tl

    def cast_impl(self, src, target):
        old, new = src.dtype.scalar, target.scalar
        if new == tl.bfloat16 and old == tl.float32:
            bits = torch.from_numpy(np.ascontiguousarray(src.data)).to(torch.bfloat16).view(torch.uint16).numpy()
            return interpreter.TensorHandle(bits, tl.bfloat16)
        with np.errstate(all="ignore"):
            return plain(self, src, target)

    return cast_impl


def _bf16(interpreter):
    import triton.language as tl

    def get_bf16(self, value):
        bits = torch.tensor([value], dtype=torch.bfloat16).view(torch.uint16).numpy()
        return interpreter.TensorHandle(bits, tl.bfloat16)

    return get_bf16


def _dot(interpreter):
    """Products of tiles; the interpreter's own takes bfloat16 for whole numbers."""
    import triton.language as tl

    def wide(handle):
        data = np.ascontiguousarray(handle.data)
        if handle.dtype.scalar == tl.bfloat16:
            return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16).float().numpy()
        return data.astype(np.float32)

    def create_dot(self, a, b, d, *_):
        return interpreter.TensorHandle(wide(a) @ wide(b) + d.data, d.dtype.scalar)

    return create_dot


def _reduce(self, input):
    axis = self.axis
    state = tuple(input)
    while state[0].handle.data.shape[axis] > 1:
        sides = [[np.take(t.handle.data, range(k, t.handle.data.shape[axis], 2), axis) for t in state] for k in (0, 1)]
        # Neighbours meet, so that functions that are not commutative see their order.
        made = self.combine_fn.fn(*(self.to_tensor(d, t.dtype) for side in sides for d, t in zip(side, state)))
        state = made if isinstance(made, tuple) else (made,)
    out = []
    for t in state:
        data = t.handle.data if self.keep_dims else np.squeeze(t.handle.data, axis)
        out.append(self.to_tensor(data if data.ndim else data.item(), t.dtype))
    return out


def _scan(self, input):
    axis, state = self.axis, tuple(input)
    n, step = state[0].handle.data.shape[axis], 1
    while step < n:
        before = np.maximum(np.arange(n) - step, 0)
        low = [self.to_tensor(np.take(t.handle.data, before, axis), t.dtype) for t in state]
        made = self.combine_fn.fn(*low, *state)
        made = made if isinstance(made, tuple) else (made,)
        shape = [1] * state[0].handle.data.ndim
        shape[axis] = n
        first = (np.arange(n) < step).reshape(shape)
        state = tuple(
            self.to_tensor(np.where(first, t.handle.data, m.handle.data), t.dtype) for t, m in zip(state, made)
        )
        step *= 2
    return list(state)


class _Library:
    """CUDA's math library, by torch's functions."""

    _NAMES = {"rint": torch.round, "pow": torch.pow, "fmod": torch.fmod}

    def __getattr__(self, name):
        function = self._NAMES.get(name) or getattr(torch, name)

        def call(*args):
            tl, interpreter = _interpreter()
            first = next(k for k, a in enumerate(args) if isinstance(a, tl.tensor))
            kind = args[first].dtype
            data = [a.handle.data if isinstance(a, tl.tensor) else np.asarray(a) for a in args]
            tensors = [torch.from_numpy(np.array(d)) for d in np.broadcast_arrays(*data)]
            tensors = [t.to(tensors[first].dtype) for t in tensors]
            made = function(*tensors)
            kind = tl.int32 if name == "signbit" else kind
            made = made.to(torch.int32).numpy() if name == "signbit" else made.numpy()
            shape = next((a.shape for a in args if isinstance(a, tl.tensor) and a.type.is_block()), None)
            if shape is None:
                return tl.core.tensor(interpreter.TensorHandle(made.reshape(1), kind), kind)
            return tl.core.tensor(interpreter.TensorHandle(made, kind), tl.block_type(kind, list(made.shape)))

        return call


def load(text):
    """The functions of a module's text."""
    _interpreter()
    path = Path(tempfile.mkdtemp()) / "kernels.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("kernels", path)
    module = importlib.util.module_from_spec(spec)
    with interpreting():
        spec.loader.exec_module(module)
    module.libdevice = _Library()
    return SimpleNamespace(**{k: v for k, v in vars(module).items() if not k.startswith("__")})


class Runner:
    """A schedule that can be called."""

    def __init__(self, schedule: Any, texts: list[str]) -> None:
        self.schedule = schedule
        self.program = schedule.program
        self.module = load(unit_text(texts)) if texts else None

    def __call__(self, inputs, constants):
        given = dict(zip(self.program.inputs, inputs, strict=True))
        given.update((name, constants[name]) for name in self.program.consts)
        machine = _Machine(self.program, given)
        machine.filled.update(b.name for b in self.program.buffers)
        for call in self.program.recipe.calls:
            machine.call(call)
        for step in self.schedule.steps:
            if isinstance(step, Extern):
                machine.call(step)
                continue
            programs = as_int(step.grid[0])
            if programs:
                args = [flat(machine.tensor(a)) for a in step.args]
                params = next(k.params for k in self.schedule.kernels if k.name == step.kernel)
                args = [a.item() if p.number else a for a, p in zip(args, params, strict=True)]
                args += [as_int(s) for s in step.sizes]
                with np.errstate(all="ignore"), interpreting():
                    getattr(self.module, step.kernel)[(programs,)](*args)
        return tuple(machine.argument(out) for out in self.program.outputs)


def flat(t):
    """Memory from the first element on."""
    if t.numel() == 0:
        return torch.empty(1, dtype=t.dtype)
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    return t.as_strided((extent,), (1,))
