"""Calls for which a kernel is written from a template: matmuls and convolutions with constant weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from firebrick.codegen import cpp_convolution, cpp_linear, cpp_recurrent
from firebrick.codegen.cpp_convolution import Call, Dense
from firebrick.codegen.cpp_depthwise import Depthwise
from firebrick.codegen.cpp_linear import Linear
from firebrick.codegen.cpp_recurrent import Recurrent
from firebrick.loops.ir import Extern

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from firebrick.codegen.cpp_writer import Unit
    from firebrick.loops.schedule import Schedule

__all__ = ["OWN", "kind_of", "own_kernels", "own_text"]

OWN: Mapping[str, Callable[[Extern, Mapping[str, Any]], tuple[Linear | Call | Recurrent, tuple[str, ...]]]] = {
    cpp_linear.OP: Linear.of,
    cpp_convolution.OP: Call.of,
    cpp_recurrent.OP: Recurrent.of,
}
"""Op -> what makes a kernel's shape of a call, with the buffers that the kernel is given."""


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
