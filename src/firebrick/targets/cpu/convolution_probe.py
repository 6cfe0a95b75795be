"""Our kernels of convolutions as functions of any shape, built once a machine, like those of `matmul_probe`.

A kernel is a table for one driver (`plan`); here the table is made in memory, of the addresses of what it names.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from firebrick.config import Config
from firebrick.ir.operators.convolution_op import pack_convolution_op
from firebrick.targets.cpu.dense_kernel import Call, Dense, Field, tallest
from firebrick.targets.cpu.depthwise_kernel import Depthwise
from firebrick.targets.cpu.matmul_probe import bound, probe_libraries
from firebrick.targets.cpu.unit_writer import Unit
from firebrick.targets.cpu.units import unit_text

if TYPE_CHECKING:
    from firebrick.targets.cpu.cpu_target import CpuTarget

_PROBE = """\
extern "C" {{ void* fb_probe_symbols[] = {{{symbols}}}; }}
extern "C" void fb_probe(void* const* args, const int64_t* s) {{
  fb_parallel(fb_{kind}_part, args, s + 2, s[0], s[1] ? 0 : 1);
}}
"""


class ConvolutionProbe:
    """The kernels of one machine. detail: columns of a panel; or of channels by themselves as many as a vector has, the
    width of the window, step, dilation and the results of a tile."""

    def __init__(self, target: CpuTarget, config: Config, detail: int | tuple[int, ...]) -> None:
        self.unit, lanes = Unit(target), target.vector_bytes // 4
        self.columns = detail if isinstance(detail, int) else 0
        if isinstance(detail, int):  # a last panel may fill some pairs of its vectors
            kind, vectors = f"dense{detail}_{self.unit.vector('f32', lanes)}", detail // lanes
            how = (1, 1), (0, 0), (1, 1)
            tiles = [(n, rows) for n in range(2, vectors + 1, 2) for rows in range(1, tallest(self.unit, vectors) + 1)]
            calls = [self._call((1, 4, 1, rows), (n * lanes, 4, 1, 1), *how, (1, rows)) for n, rows in tiles]
        else:
            kind, (channels, window, step, dilation, results) = "depthwise", detail
            shapes = (1, channels, 1, 1), (channels, 1, 1, window), (1, step), (0, 0), (1, dilation), (1, results)
            calls = [self._call(*shapes)]
        names = list(dict.fromkeys(name for call in calls for name in self._names(call, kind)))
        text = _PROBE.format(symbols=", ".join(f"(void*){name}" for name in names), kind=kind)
        entries = ("fb_probe_symbols", "fb_probe")
        (self.library,) = probe_libraries(target, config, (unit_text(self.unit, [text]), entries))
        places = (ctypes.c_void_p * len(names)).from_address(self.library.symbol("fb_probe_symbols"))
        self.symbols = dict(zip(names, places, strict=True))
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(self.library.symbol("fb_probe"))

    def _names(self, call: Call, kind: str) -> list[str]:
        """The functions that the table of a call names; the unit then has them, and what all kernels share."""
        plan, _, driver, _ = (Dense if self.columns else Depthwise)(call, "probe").plan(self.unit)
        call.entry(self.unit, "probe", kind, driver, 1, plan)
        return [name for name in _words(tuple(plan.values())) if isinstance(name, str) and name.startswith("fb_")]

    def _call(self, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, size: Any) -> Call:
        """A call of tensors without gaps, of which these are the shapes, on a packed weight."""
        (batch, inner, *image), (outer, _, *window), (top, left) = x, weight, padding
        steps = (0, math.prod((inner, *image)), image[1] * inner, inner)
        sizes = (tuple(image), tuple(size), self.columns, tuple(window), tuple(stride))
        ends = (0, None, "none", ())
        return Call(batch, inner, outer, *sizes, (left, left, top, top), tuple(dilation), steps, *ends)  # type: ignore[arg-type]

    def run(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        out: torch.Tensor,
        how: Any,
        other: torch.Tensor | None = None,
    ) -> Callable[[], Any]:
        """What computes the convolution of x, channels last, plus `other`, into `out`. how: stride, padding, dilation.

        Raises:
            KeyError: no such kernel takes this shape.
        """
        stride, padding, dilation = how
        call = self._call(x.shape, weight.shape, stride, padding, dilation, out.shape[2:])
        bias_at, other_at = (None if t is None else 0 for t in (bias, other))
        call, read = replace(call, bias=bias_at, other=other_at), pack_convolution_op(weight, self.columns)
        shape, tables, _, count = (Dense if self.columns else Depthwise)(call, "probe").plan(self.unit)
        words = {f"probe_{name}": _words(table) for name, table in tables.items()}
        arrays = {name: (ctypes.c_int64 * len(numbers))(*numbers) for name, numbers in words.items()}
        places = self.symbols | {name: ctypes.addressof(array) for name, array in arrays.items()} | {"nullptr": 0}
        fields = [places[n] if isinstance(n, str) else n for n in _words(tuple(call.fields(shape).values()))]
        tensors = [t for t in (x, read, bias, other, out) if t is not None]
        return bound(self.call, tensors, (count, call.is_serial(), *fields), arrays)


def _words(value: Field) -> list[Any]:
    """A field as the numbers and names that it consists of."""
    return [word for part in value for word in _words(part)] if isinstance(value, tuple) else [value]
