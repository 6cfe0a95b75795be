"""Our kernels of matmuls as functions of any shape, built once a machine: a shape is measured without a compile.

A kernel is numbers and tiles for the driver of its form (`Linear.blocking`); here the numbers are arguments.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch

from firebrick import _native
from firebrick.artifact import Artifact
from firebrick.artifact import Unit as Text
from firebrick.runtime.build import build
from firebrick.runtime.cache import DiskCache, make_key
from firebrick.targets.cpu.epilogue import finish
from firebrick.targets.cpu.matmul_kernel import MOST_ROWS, POINTS, Linear, form_of
from firebrick.targets.cpu.panel_kernel import HALVES, PANEL_COLUMNS, PanelProduct
from firebrick.targets.cpu.unit_writer import Unit
from firebrick.targets.cpu.units import flags_of, unit_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from firebrick.config import Config
    from firebrick.targets.cpu.cpu_target import CpuTarget
    from firebrick.targets.cpu.matmul_kernel import Blocking

    Plan = tuple[Blocking, tuple[int, ...]]

_NUMBERS = 20
"""Whole numbers that a shape of the drivers begins with; behind them an argument has what `_PROBE` reads."""

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_PROBE = """\
static void fb_probe_{form}_part(void* const* args, const int64_t* s, int64_t begin, int64_t end) {{
  typedef void (*tile)({types});
  static const tile tiles[] = {{{tiles}}};
  fb_{form}_shape<{type}> shape;
  __builtin_memcpy(&shape, s, {numbers} * 8);
  s += {numbers};
  shape.pack = {pack};
  for (int i = 0; i < 2; i++) shape.whole[i] = shape.last[i] = tiles[s[1 + i]];
  shape.finish = args[2] ? {finish} : nullptr;
  const bool several = s[5] > 1;
  for (int64_t i = several ? begin : 0; i < (several ? end : 1); i++)
    fb_by_{form}(shape, (const {type}*)args[0] + i * s[6], (const {type}*)args[1] + i * s[7], nullptr,
        (const float*)args[2], nullptr, (float*)args[3] + i * s[8], several ? 0 : begin, several ? s[3] : end);
}}
extern "C" void fb_probe_{form}(void* const* args, const int64_t* s) {{
  const int64_t count = s[{numbers} + 5] > 1 ? s[{numbers} + 5] : s[{numbers} + 3], pieces = s[{numbers} + 4];
  if (pieces) fb_parallel(fb_probe_{form}_part, args, s, count, pieces);
  else fb_probe_{form}_part(args, s, 0, count);
}}
"""
"""A form of matmul. Behind the numbers of a shape: pack, tiles of two heights, parts, pieces, batch and its strides."""


def probe_library(target: CpuTarget, config: Config, text: str, entries: Sequence[str]) -> Any:
    """A library of kernels that take what is usually written into them as arguments; built once a machine."""
    unit = Text("probe", text, tuple(entries), (*flags_of(text), *target.flags))
    key = make_key({"probe": unit.key(config.compiler)}, "kernels to be measured")
    built = DiskCache(config).fetch(key, lambda: build(Artifact("probe", {}, (unit,)), config))
    return _native.Library(built.code["probe"], "firebrick:probe")


class MatmulProbe:
    """The kernels of one machine for factors of one dtype. half: bfloat16."""

    def __init__(self, target: CpuTarget, config: Config, half: bool) -> None:
        self.unit, self.half = Unit(target), half
        self.lanes = max(target.vector_bytes // 4, 4)
        texts, self.tiles, self.packs = [], {}, {}
        for form in ("dots", "panels"):
            shapes = [self._linear(n, 4096, 4096, t, form) for n in range(1, MOST_ROWS + 2) for t in (True, False)]
            plans = [shape.blocking(self.unit) for shape in shapes]
            names = list(dict.fromkeys(name for plan in plans for name in plan.points[0]))
            packs = list(dict.fromkeys(plan.pack for plan in plans))
            self.tiles[form], self.packs[form] = names, packs
            choice = " : ".join(f"s[0] == {i} ? {pack}" for i, pack in enumerate(packs))
            kind, parts = shapes[0].type, {"tiles": ", ".join(names), "pack": f"{choice} : nullptr"}
            parts["finish"] = finish(self.unit, self.lanes, "none", ())
            types = POINTS[form].replace("W*", f"{kind}*")
            texts.append(_PROBE.format(form=form, types=types, type=kind, numbers=_NUMBERS, **parts))
        entries = [f"fb_probe_{form}" for form in self.tiles]
        self.library = probe_library(target, config, unit_text(self.unit, texts), entries)
        self.calls = {form: _CALL(self.library.symbol(name)) for form, name in zip(self.tiles, entries, strict=True)}

    def _linear(self, rows: int, inner: int, outer: int, turned: bool, form: str, batch: int = 1) -> Linear:
        strides = (0, 1, inner) if turned else (0, outer, 1)
        steps = (batch, rows * inner, inner * outer, rows * outer) if batch > 1 else (1, 0, 0, 0)
        ends = (None, outer, "none", (), form, self.half, steps)
        return Linear(rows, inner, outer, (0, inner), strides, None, 0, *ends)

    def rounded(self, inner: int, outer: int) -> tuple[int, int]:
        """The next sizes for which no tile has lanes left over."""
        return tuple(-(-n // (2 * self.lanes)) * 2 * self.lanes for n in (inner, outer))  # type: ignore[return-value]

    def plan(self, form: str, sizes: tuple[int, int, int], turned: bool, batch: int = 1) -> Plan:
        """How a form computes [rows, inner] by [inner, outer], which are `rounded`, or a batch of them."""
        rows, inner, outer = sizes
        linear = self._linear(rows, inner, outer, turned, form_of(form, rows, inner, turned), batch)
        return linear.blocking(self.unit), linear.batch

    def run(self, plan: Plan, read: Sequence[torch.Tensor | None], out: torch.Tensor) -> Callable[[], Any]:
        """What computes x @ weight + bias of what is `read` into `out`, all without gaps and the bias float32.

        Raises:
            ValueError: no such kernel takes this shape.
        """
        blocking, batch = plan
        places = [self.tiles[blocking.form].index(name) for name in blocking.points[0]]
        pack = self.packs[blocking.form].index(blocking.pack)
        more = (pack, places[0], places[-1], blocking.count, blocking.pieces, *batch)
        sizes = (ctypes.c_int64 * (_NUMBERS + len(more)))(*blocking.numbers, *more)
        args = (ctypes.c_void_p * 4)(*(t if t is None else t.data_ptr() for t in (*read, out)))
        call = self.calls[blocking.form]
        return lambda: (call(args, sizes), read, out)  # which live as long as the call


class PanelProbe:
    """The kernel of bfloat16 on panels, for any shape."""

    def __init__(self, target: CpuTarget, config: Config, _: None) -> None:
        unit, name, (rows, inner, outer) = Unit(target), "fb_probe_panels", (f"sizes[{i}]" for i in range(3))
        shape = PanelProduct(rows, inner, outer, (0, inner), 0, outer, HALVES, "uint16_t", 0)
        self.columns = PANEL_COLUMNS[target.vector_bytes]
        self.library = probe_library(target, config, unit_text(unit, [shape.text(unit, name)]), (name,))
        self.call = _CALL(self.library.symbol(name))

    def run(self, rows: int, inner: int, outer: int) -> Callable[[], Any]:
        """What computes x @ weight + bias, with a weight of its own."""
        x, out = (torch.ones(rows, n, dtype=torch.bfloat16) for n in (inner, outer))
        panels = -(-outer // self.columns), -(-inner // (16 * HALVES)) * 16, self.columns, HALVES
        tensors = x, torch.ones(panels, dtype=torch.bfloat16), torch.ones(outer), out
        args, sizes = (ctypes.c_void_p * 4)(*(t.data_ptr() for t in tensors)), (ctypes.c_int64 * 3)(rows, inner, outer)
        return lambda: (self.call(args, sizes), tensors)
