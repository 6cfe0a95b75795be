"""Our kernels of matmuls as functions of any shape, built once a machine: a shape is measured without a compile.

A kernel is numbers and tiles for the driver of its form (`Linear.blocking`); here the numbers are arguments.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from firebrick import _native
from firebrick.artifact import Artifact
from firebrick.artifact import Unit as Text
from firebrick.runtime.build import build
from firebrick.runtime.cache import DiskCache, make_key
from firebrick.targets.cpu.epilogue import finish
from firebrick.targets.cpu.matmul_kernel import MOST_ROWS, POINTS, Linear, form_of
from firebrick.targets.cpu.unit_writer import Unit
from firebrick.targets.cpu.units import flags_of, unit_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from firebrick.config import Config
    from firebrick.targets.cpu.cpu_target import CpuTarget
    from firebrick.targets.cpu.matmul_kernel import Blocking

_NUMBERS = 19
"""Whole numbers that a shape of the drivers begins with; behind them an argument has what `_PROBE` reads."""

_PROBE = """\
static void fb_probe_{form}_part(void* const* args, const int64_t* s, int64_t begin, int64_t end) {{
  typedef void (*tile)({types});
  static const tile tiles[] = {{{tiles}}};
  fb_{form}_shape<{type}> shape;
  __builtin_memcpy(&shape, s, {numbers} * 8);
  shape.pack = {pack};
  for (int i = 0; i < 2; i++) shape.whole[i] = shape.last[i] = tiles[s[{numbers} + 1 + i]];
  shape.finish = args[2] ? {finish} : nullptr;
  fb_by_{form}(shape, (const {type}*)args[0], (const {type}*)args[1], nullptr, (const float*)args[2], nullptr,
      (float*)args[3], begin, end);
}}
extern "C" void fb_probe_{form}(void* const* args, const int64_t* s) {{
  const int64_t count = s[{numbers} + 3], pieces = s[{numbers} + 4];
  if (pieces) fb_parallel(fb_probe_{form}_part, args, s, count, pieces);
  else fb_probe_{form}_part(args, s, 0, count);
}}
"""


class MatmulProbe:
    """The kernels of one machine for factors of one dtype. half: bfloat16."""

    def __init__(self, target: CpuTarget, config: Config, half: bool) -> None:
        self.unit, self.half = Unit(target), half
        self.lanes = max(target.vector_bytes // 4, 4)
        texts, self.tiles, self.packs = [], {}, {}
        for form in ("dots", "panels"):
            shapes = [
                self._linear(rows, 4096, 4096, turned, form) for rows in self._heights() for turned in (True, False)
            ]
            plans = [shape.blocking(self.unit) for shape in shapes]
            names = list(dict.fromkeys(name for plan in plans for name in plan.points[0]))
            packs = list(dict.fromkeys(plan.pack for plan in plans))
            self.tiles[form], self.packs[form] = names, packs
            choice = " : ".join(f"s[{_NUMBERS}] == {i} ? {pack}" for i, pack in enumerate(packs))
            texts.append(
                _PROBE.format(
                    form=form,
                    types=POINTS[form].replace("W*", f"{shapes[0].type}*"),
                    tiles=", ".join(names),
                    type=shapes[0].type,
                    numbers=_NUMBERS,
                    pack=f"{choice} : nullptr",
                    finish=finish(self.unit, self.lanes, "none", ()),
                )
            )
        text = unit_text(self.unit, texts)
        unit = Text("probe", text, ("fb_probe_dots", "fb_probe_panels"), (*flags_of(text), *target.flags))
        key = make_key({"probe": unit.key(config.compiler)}, "kernels to be measured")
        made = DiskCache(config).fetch(key, lambda: build(Artifact("probe", {}, (unit,)), config))
        self.library = _native.Library(made.code["probe"], "firebrick:probe")
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
        self.calls = {form: call(self.library.symbol(f"fb_probe_{form}")) for form in self.tiles}

    def _heights(self) -> Sequence[int]:
        """Numbers of rows of which a kernel takes each tile that there is."""
        return range(1, MOST_ROWS + 1)

    def _linear(self, rows: int, inner: int, outer: int, turned: bool, form: str) -> Linear:
        strides = (0, 1, inner) if turned else (0, outer, 1)
        return Linear(rows, inner, outer, (0, inner), strides, None, 0, None, outer, "none", (), form, self.half)

    def rounded(self, inner: int, outer: int) -> tuple[int, int]:
        """The next sizes for which no tile has lanes left over."""
        return tuple(-(-n // (2 * self.lanes)) * 2 * self.lanes for n in (inner, outer))  # type: ignore[return-value]

    def blocking(self, form: str, sizes: tuple[int, int, int], turned: bool) -> Blocking:
        """How a form computes [rows, inner] by [inner, outer], which are `rounded`."""
        rows, inner, outer = sizes
        return self._linear(rows, inner, outer, turned, form_of(form, rows, inner, turned)).blocking(self.unit)

    def run(self, plan: Blocking, read: Sequence[torch.Tensor], out: torch.Tensor) -> Callable[[], Any]:
        """What computes x @ weight + bias of what is `read` into `out`, all without gaps and the bias float32.

        Raises:
            ValueError: no such kernel takes this shape.
        """
        places = [self.tiles[plan.form].index(name) for name in plan.points[0]]
        packs = self.packs[plan.form]
        more = (packs.index(plan.pack) if plan.pack in packs else -1, places[0], places[-1], plan.count, plan.pieces)
        sizes = (ctypes.c_int64 * (_NUMBERS + 5))(*plan.numbers, *more)
        args, call = (ctypes.c_void_p * 4)(*(t.data_ptr() for t in (*read, out))), self.calls[plan.form]
        return lambda: (call(args, sizes), read, out)  # which live as long as the call
