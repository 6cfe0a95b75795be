"""Small programs for the runtime's tests: loop programs of library calls, and one kernel written by hand."""

from __future__ import annotations

from firebrick.artifact import Artifact, Unit
from firebrick.host.table import host_program
from firebrick.ir.index.expr import as_expr, exprs
from firebrick.ir.kernels.schedule import Kernel, Launch, Param, Place, Schedule
from firebrick.ir.loops.program import Buffer, Extern, LoopProgram, Recipe, Ref
from firebrick.runtime import load

FLAGS = ("-O1",)
PLUS_ONE = """
extern "C" void plus_one(void* const* args, const long* sizes) {
  const float* a = (const float*)args[0];
  float* b = (float*)args[1];
  for (long i = 0; i < sizes[0]; i++) b[i] = a[i] + 1;
}
"""


def buffer(name, shape, kind, dtype="f32"):
    strides, step = [], as_expr(1)
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return Buffer(name, dtype, exprs(shape), tuple(reversed(strides)), kind)


def whole(b):
    return Ref(b.name, b.shape, b.strides, as_expr(0))


def seen(b, shape, strides, offset=0, dtype=None):
    return Ref(b.name, exprs(shape), exprs(strides), as_expr(offset), dtype)


def call(op, args, outs, into=False, **kwargs):
    names = tuple(b.name if b is not None else None for b in outs)
    return Extern("n", op, tuple(args), tuple(kwargs.items()), names, into)


def program(buffers, outputs, recipe=()):
    inputs = tuple(b.name for b in buffers if b.kind == "input")
    consts = tuple(b.name for b in buffers if b.kind == "const")
    return LoopProgram("test", tuple(buffers), (), inputs, consts, tuple(outputs), Recipe(tuple(recipe)))


def schedule(made, steps, arena=(), kernels=()):
    """Buffers of `arena` live there one after another; what a call makes is its own; the rest is fresh."""
    called = {n for s in steps if isinstance(s, Extern) and not s.into for n in s.outs}
    places, offset = [], 0
    for b in made.buffers:
        if b.kind in ("input", "const", "derived"):
            places.append(Place(b.name, "given"))
        elif b in arena:
            places.append(Place(b.name, "arena", offset, 4096))
            offset += 4096
        else:
            places.append(Place(b.name, "call" if b.name in called else "fresh"))
    return Schedule(made, tuple(kernels), tuple(steps), tuple(places), offset, tuple(() for _ in steps))


def run_calls(buffers, outputs, steps, constants=None, arena=(), recipe=()):
    """The executable of a program of library calls."""
    table = host_program(schedule(program(buffers, outputs, recipe), steps, arena))
    return load(Artifact("test", table), constants or {})


def plus_one_artifact(size=6, name="plus_one"):
    x, y = buffer("x", (size,), "input"), buffer("y", (size,), "output")
    launch = Launch("plus_one", ("x", "y"), (as_expr(size),))
    kernel = Kernel("plus_one", (Param("a0", "f32", False), Param("a1", "f32", True)), None)
    table = host_program(schedule(program([x, y], [whole(y)]), [launch], kernels=[kernel]))
    return Artifact(name, table, (Unit("u0", PLUS_ONE, ("plus_one",), FLAGS),))
