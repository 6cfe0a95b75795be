"""Calls for which a kernel is written from a template: matmuls and convolutions with constant weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firebrick.loops.ir import Extern
from firebrick.targets.cpu import dense_kernel, matmul_kernel, recurrent_kernel
from firebrick.targets.cpu.dense_kernel import Call, Dense
from firebrick.targets.cpu.depthwise_kernel import Depthwise
from firebrick.targets.cpu.matmul_kernel import Linear
from firebrick.targets.cpu.recurrent_kernel import Recurrent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from firebrick.loops.schedule import Schedule
    from firebrick.symbolic.expr import Expr
    from firebrick.targets.cpu.unit_writer import Unit

__all__ = ["OWN", "kind_of", "own_kernels", "own_text"]

Shape = Linear | Call | Recurrent

OWN: Mapping[str, Callable[[Extern, Mapping[str, Any]], tuple[Shape, tuple[str, ...], tuple[Expr, ...]]]] = {
    matmul_kernel.OP: Linear.of,
    dense_kernel.OP: Call.of,
    recurrent_kernel.OP: Recurrent.of,
}
"""Op -> what makes a kernel's shape of a call, with the buffers and sizes that the kernel is given."""


def own_kernels(schedule: Schedule) -> dict[str, Linear | Call | Recurrent]:
    """The shapes that a schedule has kernels of, by the names of the kernels."""
    buffers = {b.name: b for b in schedule.program.buffers}
    found = (OWN[s.op](s, buffers)[0] for s in schedule.steps if isinstance(s, Extern) and s.op in OWN)
    return {shape.name: shape for shape in found}


def own_text(shape: Linear | Call | Recurrent, unit: Unit, threads: int) -> str:
    """A kernel, less what `unit` puts before it."""
    if isinstance(shape, (Linear, Recurrent)):
        return shape.text(unit, threads)
    return (Dense if shape.columns else Depthwise)(shape).text(unit, threads)


def kind_of(shape: Linear | Call | Recurrent, unit: Unit) -> str:
    """Shapes of one kind take the same tiles."""
    if isinstance(shape, Linear):
        return f"{'dots' if shape.by_dots(unit) else 'panels'} of {shape.type}"
    if isinstance(shape, Recurrent):
        return "recurrent"
    return "dense" if shape.columns else "depthwise"
