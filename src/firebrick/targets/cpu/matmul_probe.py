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
_KINDS = ("dots", "panels", "copied", "ahead")
"""The forms, of which "copied" has panels of a weight whose columns lie side by side."""


def probe_library(target: CpuTarget, config: Config, text: str, entries: Sequence[str]) -> Any:
    """A library of kernels that take what is usually written into them as arguments; built once a machine."""
    unit = Text("probe", text, tuple(entries), (*flags_of(text), *target.flags))
    key = make_key({"probe": unit.key(config.compiler)}, "kernels to be measured")
    built = DiskCache(config).fetch(key, lambda: build(Artifact("probe", {}, (unit,)), config))
    return _native.Library(built.code["probe"], "firebrick:probe")


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
    library = probe_library(target, config, unit_text(unit, [shape.text(unit, name)]), (name,))
    call = _CALL(library.symbol(name))
    return lambda tensors, *sizes: bound(call, tensors, sizes, library)


class MatmulProbe:
    """The kernels of one machine for factors of one dtype. half: bfloat16."""

    def __init__(self, target: CpuTarget, config: Config, half: bool) -> None:
        self.unit, self.lanes = Unit(target), max(target.vector_bytes // 4, 4)
        width = vectors_ahead(REGISTERS.get(target.vector_bytes, 16)) * self.lanes
        inner, outer, *batch = [f"sizes[{i}]" for i in range(1, 7)]
        texts, names = [], {kind: f"fb_probe_{kind}" for kind in _KINDS}
        strides = {"copied": (0, outer, 1), "ahead": (0, width, inner)}
        for kind in _KINDS:
            form = "panels" if kind == "copied" else kind
            ends = (None, 0, None, outer, "none", (), form, half, tuple(batch))
            shape: Any = (0, inner, outer, (0, inner), strides.get(kind, (0, 1, inner)), *ends)
            texts.append(Linear(*shape).text(self.unit, names[kind]))
        self.library = probe_library(target, config, unit_text(self.unit, texts), tuple(names.values()))
        self.calls = {kind: _CALL(self.library.symbol(name)) for kind, name in names.items()}

    def rounded(self, inner: int, outer: int) -> tuple[int, int]:
        """The next sizes for which no tile has lanes left over."""
        return tuple(-(-n // (2 * self.lanes)) * 2 * self.lanes for n in (inner, outer))  # type: ignore[return-value]

    def plan(self, form: str, sizes: tuple[int, int, int], turned: bool, batch: int = 1) -> Plan:
        """The kernel that computes [rows, inner] by [inner, outer], which are `rounded`, or a batch of them."""
        rows, inner, outer = sizes
        form = form_of(form, rows, inner, turned)
        if form == "own":
            form = "panels" if self.unit.target.vector_bytes == 32 else "dots"
        steps = (rows * inner, inner * outer, rows * outer) if batch > 1 else (0, 0, 0)
        return form if turned or form == "ahead" else "copied", (*sizes, batch, *steps)

    def run(self, plan: Plan, read: Sequence[torch.Tensor | None], out: torch.Tensor) -> Callable[[], Any]:
        """What computes x @ weight + bias of what is `read` into `out`, all without gaps and the bias float32."""
        return bound(self.calls[plan[0]], (*read, out), plan[1])
