"""Our kernels of dense convolutions as functions of any shape, built once a machine, like those of `matmul_probe`.

A kernel is a table for one driver (`Dense.plan`); here the table is made in memory, of the addresses of what it names.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from firebrick.ir.operators.convolution_op import pack_convolution_op
from firebrick.targets.cpu.dense_kernel import Call, Dense, tallest
from firebrick.targets.cpu.matmul_probe import probe_library
from firebrick.targets.cpu.tiles import pixels
from firebrick.targets.cpu.unit_writer import Unit
from firebrick.targets.cpu.units import unit_text

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from firebrick.config import Config
    from firebrick.targets.cpu.cpu_target import CpuTarget
    from firebrick.targets.cpu.dense_kernel import Field

_PROBE = """\
extern "C" {{ void* fb_probe_symbols[] = {{{symbols}}}; }}
extern "C" void fb_probe_dense(void* const* args, const int64_t* s) {{
  fb_parallel(fb_dense_{v}_part, args, s + 2, s[0], s[1] ? 0 : 1);
}}
"""


class ConvolutionProbe:
    """The kernels of one machine. columns: of a panel."""

    def __init__(self, target: CpuTarget, config: Config, columns: int) -> None:
        self.unit, self.columns = Unit(target), columns
        lanes = target.vector_bytes // 4
        vectors, v = columns // lanes, self.unit.vector("f32", lanes)
        one = replace(self._call((1, 4, 4, 4), (columns, 4, 3, 3), (1, 1), (1, 1), (1, 1), (4, 4)), weight=0)
        plan, _, driver, _ = Dense(one, "probe").plan(self.unit)
        one.entry(self.unit, "probe", f"dense_{v}", driver, 1, plan)  # the unit then has what kernels share
        heights = range(1, tallest(self.unit, vectors) + 1)
        widths = range(1, vectors + 1)  # a last panel may fill some of its vectors
        names = [pixels(self.unit, lanes, rows, n, lanes, columns) for n in widths for rows in heights]
        names += [str(plan["window"]), str(plan["finish"])]
        text = _PROBE.format(symbols=", ".join(f"(void*){name}" for name in names), v=v)
        entries = ("fb_probe_symbols", "fb_probe_dense")
        self.library = probe_library(target, config, unit_text(self.unit, [text]), entries)
        places = (ctypes.c_void_p * len(names)).from_address(self.library.symbol("fb_probe_symbols"))
        self.symbols = dict(zip(names, places, strict=True))
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
        self.call = call(self.library.symbol("fb_probe_dense"))

    def _call(self, x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, size: Any) -> Call:
        """A call of tensors without gaps, of which these are the shapes, on a packed weight."""
        (batch, inner, *image), (outer, _, *window), (top, left) = x, weight, padding
        steps = (0, math.prod((inner, *image)), image[1] * inner, inner)
        sizes = (tuple(image), tuple(size), self.columns, tuple(window), tuple(stride))
        ends = (None, None, 0, None, "none", ())
        return Call(batch, inner, outer, *sizes, (left, left, top, top), tuple(dilation), steps, *ends)  # type: ignore[arg-type]

    def run(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor, how: Any, in_place: bool
    ) -> Callable[[], Any]:
        """What computes the convolution of x, channels last, into `out`. how: stride, padding and dilation.

        Raises:
            KeyError: no such kernel takes this shape.
        """
        stride, padding, dilation = how
        call = self._call(x.shape, weight.shape, stride, padding, dilation, out.shape[2:])
        call = replace(call, weight=0) if in_place else call
        read = weight if in_place else pack_convolution_op(weight, self.columns)
        shape, tables, _, count = Dense(call, "probe").plan(self.unit)
        arrays = {}
        for name, rows in tables.items():
            numbers = _flat(rows, {})
            arrays[f"probe_{name}"] = (ctypes.c_int64 * len(numbers))(*numbers)
        places = {name: ctypes.addressof(array) for name, array in arrays.items()}
        fields = _flat(tuple(call.fields(shape).values()), {**self.symbols, **places, "nullptr": 0})
        table = (ctypes.c_int64 * (2 + len(fields)))(count, call.is_serial(), *fields)
        args = (ctypes.c_void_p * 4)(*(t.data_ptr() for t in (x, read, bias, out)))
        return lambda: (self.call(args, table), x, read, bias, out, arrays)  # which live as long as the call


def _flat(value: Field, places: dict[str, int]) -> list[int]:
    """A field as the words that it takes in memory."""
    if isinstance(value, tuple):
        return [word for part in value for word in _flat(part, places)]
    return [places[value] if isinstance(value, str) else value]
