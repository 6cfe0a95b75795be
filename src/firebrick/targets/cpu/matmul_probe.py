"""Our kernels of matmuls as functions of any shape, built once a machine: a shape is measured without a compile.

Those of graphs, with sizes that each call gives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from firebrick import _native
from firebrick.artifact import Artifact
from firebrick.artifact import Unit as Text
from firebrick.config import Config
from firebrick.runtime.build import build
from firebrick.runtime.cache import DiskCache, make_key
from firebrick.targets.cpu.attention_kernel import Attention
from firebrick.targets.cpu.matmul_kernel import REGISTERS, Linear, form_of, vectors_ahead
from firebrick.targets.cpu.panel_kernel import PanelProduct
from firebrick.targets.cpu.unit_writer import Unit
from firebrick.targets.cpu.units import flags_of, unit_text

if TYPE_CHECKING:
    from firebrick.targets.cpu.cpu_target import CpuTarget

Plan = tuple[str, tuple[int, ...]]

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_KINDS = ("dots", "ahead"), ("panels", "copied", "attention")
"""The kernels of each unit, of which "copied" has panels of a weight whose columns lie side by side."""
SIZES: Any = [f"sizes[{i}]" for i in range(26)]
_PLACES = tuple(tuple(SIZES[i : i + 4]) for i in range(5, 25, 4))
ATTENTION = Attention(tuple(SIZES[:5]), _PLACES, 0.125, SIZES[25] + " != 0")
"""Attention of any size, causal or not."""


def probe_libraries(target: CpuTarget, config: Config, *units: tuple[str, Sequence[str]]) -> list[Any]:
    """Libraries of kernels that take what is usually written into them as arguments; built once a machine, all at once.

    units: texts, and the names of what each defines.
    """
    texts = [Text(f"p{i}", t, tuple(names), (*flags_of(t), *target.flags)) for i, (t, names) in enumerate(units)]
    key = make_key({unit.name: unit.key(config.compiler) for unit in texts}, "kernels to be measured")
    built = DiskCache(config).fetch(key, lambda: build(Artifact("probe", {}, tuple(texts)), config))
    return [_native.Library(built.code[unit.name], "firebrick:probe") for unit in texts]


def bound(call: Any, tensors: Sequence[torch.Tensor | None], numbers: Sequence[int], *more: Any) -> Callable[[], Any]:
    """A call of a kernel on tensors and numbers, which live as long as it does."""
    args = (ctypes.c_void_p * len(tensors))(*(t if t is None else t.data_ptr() for t in tensors))
    sizes = (ctypes.c_int64 * len(numbers))(*numbers)
    return lambda: (call(args, sizes), tensors, more)


def kernel_probe(
    target: CpuTarget, config: Config, shape: PanelProduct | Attention
) -> Callable[..., Callable[[], Any]]:
    """The kernel of a shape some of whose sizes are arguments, as `bound` takes the rest."""
    unit, name = Unit(target), "fb_probe_kernel"
    (library,) = probe_libraries(target, config, (unit_text(unit, [shape.text(unit, name)]), (name,)))
    call = _CALL(library.symbol(name))
    return lambda tensors, *sizes: bound(call, tensors, sizes, library)


class MatmulProbe:
    """The kernels of one machine for factors of one dtype, and of attention. half: bfloat16."""

    def __init__(self, target: CpuTarget, config: Config, half: bool) -> None:
        self.target, self.lanes = target, max(target.vector_bytes // 4, 4)
        width = vectors_ahead(REGISTERS.get(target.vector_bytes, 16)) * self.lanes
        inner, outer, *batch = [f"sizes[{i}]" for i in range(1, 7)]
        strides = {"copied": (0, outer, 1), "ahead": (0, width, inner)}

        def shape(kind: str) -> Linear | Attention:
            ends: Any = ("none", (), "panels" if kind == "copied" else kind, half, tuple(batch))
            numbers: Any = (0, inner, outer, (0, inner), strides.get(kind, (0, 1, inner)), None, 0, None, outer)
            return ATTENTION if kind == "attention" else Linear(*numbers, *ends)

        units = []
        for kinds in (_KINDS[0], _KINDS[1][: 2 if half else 3]):
            unit, names = Unit(target), [f"fb_probe_{kind}" for kind in kinds]
            units.append((unit_text(unit, [shape(k).text(unit, n) for k, n in zip(kinds, names, strict=True)]), names))
        self.libraries = probe_libraries(target, config, *units)
        pairs = [(lib, name) for lib, (_, names) in zip(self.libraries, units, strict=True) for name in names]
        self.calls = {name.removeprefix("fb_probe_"): _CALL(lib.symbol(name)) for lib, name in pairs}

    def rounded(self, inner: int, outer: int) -> tuple[int, int]:
        """The next sizes for which no tile has lanes left over."""
        return tuple(-(-n // (2 * self.lanes)) * 2 * self.lanes for n in (inner, outer))  # type: ignore[return-value]

    def plan(self, form: str, sizes: tuple[int, int, int], turned: bool, batch: int = 1) -> Plan:
        """The kernel that computes [rows, inner] by [inner, outer], which are `rounded`, or a batch of them."""
        rows, inner, outer = sizes
        form = form_of(form, rows, inner, turned)
        if form == "own":
            form = "panels" if self.target.vector_bytes == 32 else "dots"
        steps = (rows * inner, inner * outer, rows * outer) if batch > 1 else (0, 0, 0)
        return form if turned or form == "ahead" else "copied", (*sizes, batch, *steps)

    def run(self, plan: Plan, read: Sequence[torch.Tensor | None], out: torch.Tensor) -> Callable[[], Any]:
        """What computes x @ weight + bias of what is `read` into `out`, all without gaps and the bias float32."""
        return bound(self.calls[plan[0]], (*read, out), plan[1])
