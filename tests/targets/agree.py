"""Runs a function through lowering, scheduling and generated code, and compares it with eager and the interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from graphs import HOST, compare, trace
from machine import Runner
from tests.ir.interp import run

from firebrick.config import Config
from firebrick.ir.loops.bounds import CHECK
from firebrick.ir.loops.check import check
from firebrick.ir.loops.program import Extern
from firebrick.lower import lower
from firebrick.trace.decompositions import decompositions

if TYPE_CHECKING:
    from collections.abc import Callable

    from firebrick.ir.kernels.schedule import Schedule


def launches(schedule: Schedule) -> int:
    """How many kernels one call runs."""
    return sum(not isinstance(s, Extern) for s in schedule.steps)


def calls(schedule: Schedule) -> list[str]:
    """The library calls of one call, checks of indices not counted."""
    return [s.op for s in schedule.steps if isinstance(s, Extern) and s.op != CHECK]


def agree(
    fn: Callable[..., Any], *inputs: torch.Tensor, tolerance: float = 0.0, simd: str = "auto", exact: bool = True
) -> Schedule:
    """The schedule of a function whose kernels and whose interpreted loops both give what eager gives.

    exact: floating-point results also agree with the function of the inputs in float64.
    """
    aten = trace(fn, inputs, decompositions())
    program = lower(aten, HOST, Config())
    check(program)
    runner = Runner(program, Config(simd=simd))
    want = _tuple(fn(*[t.clone() for t in inputs]))
    copies = [[_same_layout(t) for t in inputs] for _ in range(2)]
    results = {"loops": run(program, copies[0], aten.constants), "kernels": runner(copies[1], aten.constants)}
    for made in results.values():
        for a, b in zip(want, made, strict=True):
            compare(a, b, tolerance, tolerance, stride=False)
    if exact and any(t.dtype == torch.float32 for t in inputs):
        wanted = max(tolerance, 2e-6)
        wide = _tuple(fn(*[t.double() if t.is_floating_point() else t for t in inputs]))
        for a, b in zip(wide, results["kernels"], strict=True):
            if b.is_floating_point():
                torch.testing.assert_close(b.double(), a.double(), rtol=wanted, atol=wanted, equal_nan=True)
    return runner.schedule


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _same_layout(t: torch.Tensor) -> torch.Tensor:
    once = t[tuple(slice(0, 1) if s == 0 else slice(None) for s in t.stride())]
    return torch.empty_strided(once.shape, t.stride(), dtype=t.dtype).copy_(once).expand(t.shape)
