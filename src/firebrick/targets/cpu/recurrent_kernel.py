"""Recurrent layers as C++: a step is a small matmul with the gates applied while its sums are in cache.

Each thread has the same hidden units in all steps, so that its rows of the weight, which are read where they are, stay
in its second-level cache; a step begins when all units of the one before are done. A sum's order depends on the shapes
alone, not on threads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from firebrick.errors import LoweringError
from firebrick.ir.index.expr import Expr, as_int
from firebrick.ir.loops.program import Extern, Ref
from firebrick.targets.cpu.cpp_types import size_text
from firebrick.targets.cpu.matmul_kernel import REGISTERS
from firebrick.targets.cpu.tiles import dot
from firebrick.targets.cpu.unit_writer import Unit

OP = "firebrick::recurrent.out"

_SHARE = 1 << 15
"""Multiplications of a step that are worth another thread."""

_STEP: Mapping[str, str] = {
    "lstm": """\
    const {v} i = 1.0f / (1.0f + {e}(-(x[0] + u[0]))), f = 1.0f / (1.0f + {e}(-(x[1] + u[1])));
    const {v} g = {t}(x[2] + u[2]), o = 1.0f / (1.0f + {e}(-(x[3] + u[3])));
    state = f * state + i * g;
    const {v} y = o * {t}(state);""",
    "gru": """\
    const {v} reset = 1.0f / (1.0f + {e}(-(x[0] + u[0]))), kept = 1.0f / (1.0f + {e}(-(x[1] + u[1])));
    const {v} made = {t}(x[2] + reset * u[2]);
    const {v} y = state = (state - made) * kept + made;""",
    "rnn_tanh": "    const {v} y = state = {t}(x[0] + u[0]);",
    "rnn_relu": "    const {v} s = x[0] + u[0], y = state = (s > 0.0f) | (s != s) ? s : {v}{{}};",
}
"""Cell -> what makes its output y and its next state of x, the parts of the input, u, those of the hidden state, and
its state, which is the cell state, or the hidden state where there is no other."""

_TOGETHER = """\
extern "C" int sched_yield(void);
typedef void (*fb_step)(void* const*, const int64_t*, int64_t, int64_t);
struct fb_team { fb_step step; void* const* args; const int64_t* sizes; int64_t steps, n, *claimed, most, g[8], done; };
static bool fb_claim(fb_team* w, int64_t t, int64_t block) {
  int64_t was = t;
  if (!__atomic_compare_exchange_n(w->claimed + 8 * block, &was, t + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
    return false;
  w->step(w->args, w->sizes, t, block);
  return true;
}
static void fb_join(void* p) {
  fb_team* const w = (fb_team*)p;
  const int64_t n = w->n, all = fb_threads(), some = w->most < all ? w->most : all;
  const int64_t begin = n * fb_thread() / some, end = n * (fb_thread() + 1) / some;
  if (fb_thread() >= some) return;
  for (int64_t t = 0, seen; t < w->steps; t = seen / n) {
    int64_t made = 0;
    for (int64_t i = begin; i < end; i++) made += fb_claim(w, t, t % 2 ? begin + end - 1 - i : i);
    __atomic_add_fetch(&w->done, made, __ATOMIC_ACQ_REL);
    int64_t next = n;
    for (int64_t turns = 0; (seen = __atomic_load_n(&w->done, __ATOMIC_ACQUIRE)) < (t + 1) * n; turns++) {
      if (turns < 64) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else if (next > 0) {
        if (fb_claim(w, t, (begin + --next) % n)) __atomic_add_fetch(&w->done, 1, __ATOMIC_ACQ_REL);
      } else {
        sched_yield();
      }
    }
  }
}
"""
"""Threads that do the blocks of each step side by side. claimed: of each block, the steps that someone has begun;
done: blocks of all steps that are, on other cache lines; most: threads that are worth it, the others leave. Each takes
its own blocks, in turns from the first and from the last one, so that those just read are read again while they are in
cache; one that waits takes those that nobody has begun, so that it waits for no thread that the system doesn't let
run."""

_GATES = """\
static __attribute__((noinline)) void {name}(const float* from, const float* bias, const float* sums,
    const float* before, float* after, float* out, int64_t row, int64_t rows, int64_t left) {{
  for (int64_t r = 0; r < rows; r++) {{
    {v} x[{gates}], u[{gates}];
#pragma GCC unroll 4
    for (int g = 0; g < {gates}; g++) {{
      x[g] = {whole} ? *(const {v}u*)(from + g * {size}) : {v}_load(from + g * {size}, left);
      u[g] = *(const {v}u*)(sums + g * {w});
      if (bias) u[g] += {whole} ? *(const {v}u*)(bias + g * {size}) : {v}_load(bias + g * {size}, left);
    }}
    {v} state = {whole} ? *(const {v}u*)before : {v}_load(before, left);
{step}
    if ({whole}) *({v}u*)out = y, *({v}u*)after = state;
    else {v}_store(out, y, left), {v}_store(after, state, left);
    from += row, sums += {gates} * {w}, before += {size}, after += {size}, out += {wide};
  }}
}}
"""
"""What makes a step's results of its sums, for some sequences by a vector of results, of which `left` are meant; layers
of one size share it."""

_KERNEL = """\
static void {name}_step(void* const* args, const int64_t* sizes, int64_t t, int64_t block) {{
  const float* const inputs[] = {{{inputs}}};
  const float* const weights[] = {{{weights}}};
  const float* const biases[] = {{{biases}}};
  const float* const hidden = {hidden};
  const float* const state = {state};
  float* const out = (float*)args[{out}];
  float* const last = (float*)args[{last}];
  const int64_t apart[][2] = {{{apart}}};
  __attribute__((aligned(64))) float sums[{most} * {gates} * {w}] = {{}};
  const int64_t d = block / {blocks}, n0 = block % {blocks} * {w}, at = d ? {steps} - 1 - t : t;
  const int64_t left = {size} - n0 < {w} ? {size} - n0 : {w}, place = d * {batch} * {size};
  const float* const h = t ? out + (d ? at + 1 : at - 1) * {batch} * {wide} + d * {size} : hidden + place;
  const int64_t ldh = t ? {wide} : {size};
  for (int64_t q = 0; q < {tiles}; q++) {{
    const int64_t r = {batch} * q / {tiles}, count = {batch} * (q + 1) / {tiles} - r;
    for (int64_t g = 0; g < {gates}; g++)
      for (int64_t n = 0; n < left; n += {columns}) {{
        const float* const w = weights[d] + (g * {size} + n0 + n) * {size};
        float* const c = sums + g * {w} + n;
        const int64_t some = left - n < {columns} ? left - n : {columns};
{calls}
      }}
    const int64_t from = place + r * {size} + n0;
    {finish}(inputs[d] + at * apart[d][0] + r * apart[d][1] + n0, biases[d] ? biases[d] + n0 : nullptr, sums,
        (t ? last : state) + from, last + from, out + (at * {batch} + r) * {wide} + d * {size} + n0, apart[d][1],
        count, left);
  }}
}}
extern "C" void {name}(void* const* args, const int64_t* sizes) {{
  int64_t claimed[8 * {parts}] = {{}};
  fb_team w = {{{name}_step, args, sizes, {steps}, {parts}, claimed, {threads}, {{}}, 0}};
  const int64_t limit = {threads} > 1 && fb_start ? fb_limit() : 1;
  if (limit > 1) return fb_start(fb_join, &w, limit, 0);
  for (int64_t t = 0; t < {steps}; t++)
    for (int64_t i = 0; i < {parts}; i++) {name}_step(args, sizes, t, t % 2 ? {parts} - 1 - i : i);
}}
"""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """One shape of a recurrent layer.

    projected: offset, and strides of steps and batches, of the inputs' products in each direction. weights, biases,
    hidden, state: offsets. Steps and strides may be sizes that each call gives, "sizes[0]".
    """

    cell: str
    steps: int | str
    batch: int
    size: int
    projected: tuple[tuple[int, int | str, int | str], ...]
    weights: tuple[int, ...]
    biases: tuple[int, ...]
    hidden: int
    state: int | None

    @staticmethod
    def of(call: Extern, buffers: Mapping[str, Any]) -> tuple[Recurrent, tuple[str, ...], tuple[Expr, ...]]:
        """The shape of a call, the names of its buffers in the order of the kernel's arguments, and sizes that vary."""
        cell, *tensors = call.args
        projected, weights, biases, (hidden,), state = (
            [ref for ref in (operands if isinstance(operands, tuple) else (operands,)) if isinstance(ref, Ref)]
            for operands in tensors
        )
        out, last = call.outs
        if out is None or last is None:
            raise LoweringError(f"{call.op} has no place for its results")
        sizes: list[Expr] = []
        number = partial(size_text, sizes=sizes)
        inputs = tuple((as_int(p.offset), number(p.strides[0]), number(p.strides[1])) for p in projected)
        constants = (tuple(as_int(t.offset) for t in tensors) for tensors in (weights, biases))
        states = as_int(hidden.offset), as_int(state[0].offset) if state else None
        steps, batch, size = number(projected[0].shape[0]), as_int(hidden.shape[1]), as_int(hidden.shape[2])
        fields: Any = (str(cell), steps, batch, size, inputs, *constants, *states)
        layer = Recurrent(*fields)
        operands = (*projected, *weights, *biases, hidden, *state)
        return layer, (*(ref.buffer for ref in operands), out, last), tuple(sizes)

    @property
    def kind(self) -> str:
        """A word for the kernel's name."""
        return f"{self.cell}_{'n' if isinstance(self.steps, str) else self.steps}x{self.batch}x{self.size}"

    def text(self, unit: Unit, name: str) -> str:
        """The kernel, less what `unit` puts before it."""
        unit.helpers["fb_together"] = _TOGETHER
        lanes = max(unit.target.vector_bytes // 4, 4)
        registers = REGISTERS.get(unit.target.vector_bytes, 16)
        most = min(self.batch, (registers - 1) // 5)
        columns = 8 if 9 * self.batch < registers else 4
        directions, blocks, tiles = len(self.weights), -(-self.size // lanes), -(-self.batch // most)
        gates, v = len(set(re.findall(r"x\[\d\]", _STEP[self.cell]))), unit.vector("f32", lanes)
        arguments = f"(h + r * ldh, ldh, w, {self.size}, {self.size}, w, 0, c, {gates * lanes}, some, true)"
        heights = sorted({self.batch // tiles, -(-self.batch // tiles)})
        calls = [f"{dot(unit, lanes, rows, columns, self.size % lanes != 0)}{arguments};" for rows in heights]
        text = calls[0] if len(calls) == 1 else f"if (count == {heights[0]}) {calls[0]}\n        else {calls[1]}"
        places = iter(range(3 * directions + 4))

        def pointer(offset: int | None) -> str:
            return "nullptr" if offset is None else f"(const float*)args[{next(places)}] + {offset}"

        step = _STEP[self.cell].format(v=v, e=unit.inline("exp", lanes), t=unit.inline("tanh", lanes))
        wide = directions * self.size
        finish = f"fb_{self.cell}_{v}_{self.size}_{wide}"
        sizes: dict[str, Any] = {"w": lanes, "size": self.size, "wide": wide, "gates": gates}
        whole = "true" if self.size % lanes == 0 else f"left == {lanes}"
        unit.helpers[finish] = _GATES.format(name=finish, v=v, step=step, whole=whole, **sizes)
        work = self.batch * gates * self.size * self.size * directions
        operands = {
            "inputs": ", ".join(pointer(p[0]) for p in self.projected),
            "weights": ", ".join(map(pointer, self.weights)),
            "biases": ", ".join(map(pointer, self.biases or [None] * directions)), "hidden": pointer(self.hidden),
            "state": "hidden" if self.state is None else pointer(self.state), "out": next(places),
            "last": next(places),
        }  # fmt: skip
        parts, apart = blocks * directions, ", ".join(f"{{{p[1]}, {p[2]}}}" for p in self.projected)
        sizes |= {"steps": self.steps, "batch": self.batch, "most": most, "blocks": blocks, "tiles": tiles}
        threads = max(1, min(work // _SHARE, parts, unit.target.threads))
        sizes |= {"threads": threads, "columns": columns, "parts": parts}
        return _KERNEL.format(name=name, finish=finish, apart=apart, calls=f"        {text}", **sizes, **operands)
