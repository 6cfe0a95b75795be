"""Library calls for which a kernel is written from a template: matmuls, convolutions, attention, recurrent layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from firebrick.ir.index.expr import Expr
from firebrick.ir.kernels.groups import PlannedLaunch
from firebrick.ir.kernels.schedule import Param
from firebrick.ir.loops.program import Buffer, Extern
from firebrick.targets.cpu import attention_kernel, dense_kernel, matmul_kernel, panel_kernel, recurrent_kernel
from firebrick.targets.cpu.attention_kernel import Attention
from firebrick.targets.cpu.dense_kernel import Call, Dense
from firebrick.targets.cpu.depthwise_kernel import Depthwise
from firebrick.targets.cpu.matmul_kernel import Linear
from firebrick.targets.cpu.panel_kernel import PanelProduct
from firebrick.targets.cpu.recurrent_kernel import Recurrent
from firebrick.targets.cpu.unit_writer import Unit

Shape: TypeAlias = Linear | Call | Recurrent | PanelProduct | Attention

_SHAPES: Mapping[str, Callable[[Extern, Mapping[str, Any]], tuple[Shape, tuple[str, ...], tuple[Expr, ...]]]] = {
    matmul_kernel.OP: Linear.of, dense_kernel.OP: Call.of, recurrent_kernel.OP: Recurrent.of,
    **dict.fromkeys(panel_kernel.OPS, PanelProduct.of), attention_kernel.OP: Attention.of,
}  # fmt: skip
"""Op -> what makes a kernel's shape of a call, with the buffers and sizes that the kernel is given."""


def plan_handwritten(call: Extern, buffers: Mapping[str, Buffer]) -> PlannedLaunch | None:
    """The kernel that does what a call would; None where there is none."""
    if call.op not in _SHAPES:
        return None
    shape, args, sizes = _SHAPES[call.op](call, buffers)
    params = [Param(f"a{k}", buffers[name].dtype, name in call.outs) for k, name in enumerate(args)]
    return PlannedLaunch(shape.kind, tuple(params), shape, args, sizes)


def tiles_of(shape: Shape, unit: Unit) -> str:
    """What kernels have in common that take the same tiles."""
    if isinstance(shape, Call):
        return "dense" if shape.columns else "depthwise"
    if isinstance(shape, Recurrent):
        return "recurrent"
    return "panels of float" if isinstance(shape, Attention) else shape.shares(unit)


def written_text(shape: Shape, unit: Unit, name: str) -> str:
    """A kernel, less what `unit` puts before it."""
    if isinstance(shape, Call):
        return (Dense if shape.columns else Depthwise)(shape, name).text(unit)
    return shape.text(unit, name)
