"""parse(show(x)) == x, on written programs and on generated ones; broken text is refused with its line."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from firebrick.ir.index.expr import ZERO, const, exprs, var
from firebrick.ir.loops.check import check
from firebrick.ir.loops.constructors import constant
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.parse import LoopSyntaxError, parse
from firebrick.ir.loops.program import (
    Axis,
    Buffer,
    Const,
    Enum,
    Extern,
    Index,
    Load,
    LoopProgram,
    Masked,
    Nest,
    Op,
    Recipe,
    Reduce,
    Ref,
    Store,
    Value,
)
from firebrick.ir.loops.scalar_ops import SCALAR_OPS, result_dtype
from firebrick.ir.loops.show import show
from firebrick.ir.loops.values import values_of

GELU = """\
loops f.fwd
  input  x: f32[32, 64], w: f32[64, 128 | 1, 64], b: f32[128]
  temp   %0: f32[32, 128]
  output %1: f32[32, 128]
  n0 extern %0 = aten::mm.out(x, w) into
  n1 for i0 in 32, i1 in 128
    v0 = %0[128*i0 + i1] + b[i1]
    %1[128*i0 + i1] = (v0 * 0.5) * (erf(v0 * 0.70710677) + 1.0)
  out  %1
"""

MIXED = """\
loops mixed
  size s0 in 2..inf
  input  x: f32[s0, 4], i: i64[s0]
  const  t: bf16[10, 4]
  derived d: f32[4] on cuda:0
  temp   %0: f32[s0], %1: f32[s0, 4], %2: i64[], %3: b8[s0]
  recipe n0 extern d = aten::to.dtype(t, dtype('f32'), memory_format=None)
  n6 extern _ = foo::bar(complex(1.0, -2.0), True)
  n1 for i0 in s0
    v0 = x[4*i0 + r0]
    %0[i0] = sum(v0 * v0 for r0 in 4)
  n2 for i0 in s0, i1 in 4
    %1[4*i0 + i1] = to_f32(t[i1 + 4*x0, x0 := below(max(i[i0], 0), 10)]) + -inf
  n3 once
    %2[0] = atomic_add(argmax(%0[r0] for r0 in s0))
  n4 for i0 in s0
    %3[i0] = (%0[i0] < 1.0) & not_(isnan(masked(i64(i0) >= 1, %0[i0 - 1], nan)))
  n5 extern _, %1 = foo::bar(view(x, [s0, 2], [4, 2], 1), [1, -2.5, inf], 'a, b', expr(s0), k=None) writes x
  out  %3, view(x, [s0], [4], 0), 3, None
"""


@pytest.mark.parametrize("text", [GELU, MIXED])
def test_text_reads_back(text: str) -> None:
    program = parse(text)
    assert parse(show(program)) == program


def test_written_form_is_stable() -> None:
    assert show(parse(GELU)) == GELU
    check(parse(GELU))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("  n1 for i0 in", "expected"),
        ("  temp   %0: f99[3]", "unknown dtype"),
        ("  n1 for i0 in 3\n    %9[i0] = x[i0]", "unknown buffer"),
        ("  n1 for i0 in 3\n    %0[i0] = frob(x[i0])", "no function frob"),
        ("  n1 for i0 in 3\n    %0[i0] = 1.0", "dtype of 1.0 is unknown"),
        ("  n1 for i0 in 3\n    %0[i0] = x[q]", "not an index expression"),
        ("  n1 for i0 in 3\n    %0[i0] = x[i0] +", "can't read"),
        ("  n0 extern %0 = nothing", "expected"),
    ],
)
def test_refuses(line: str, why: str) -> None:
    text = f"loops f\n  input x: f32[3]\n  temp %0: f32[3]\n{line}\n  out %0\n"
    with pytest.raises(LoopSyntaxError, match=why):
        parse(text)
    with pytest.raises(LoopSyntaxError):
        parse("")
    with pytest.raises(LoopSyntaxError, match="the end"):
        parse("loops f\n")


# ---------------------------------------------------------------- generated programs

OUTER = (Axis(var("i0", 0, 5), const(6)), Axis(var("i1", 0, 3), const(4)))
INNER = Axis(var("r0", 0, 2), const(3))
SLOT = var("x0", 0, 9)
BUFFERS = tuple(
    Buffer(name, dtype, exprs([72]), exprs([1]), "input")
    for name, dtype in [("a", "f32"), ("b", "f64"), ("c", "i64"), ("d", "b8"), ("e", "bf16"), ("f", "u8")]
)
BY_DTYPE = {b.dtype: b.name for b in BUFFERS}
FLOATS = [0.0, -0.0, 1.5, -0.1, 3e30, 1e-7, math.inf, -math.inf]
i, j, r = OUTER[0].var, OUTER[1].var, INNER.var
INDICES = [i, j * 3 + i, (i * 4 + j) % 5, (i + r) // 2, r * 3 + 1, ZERO]


def random_constant(rng: Random, dtype: str) -> Const:
    """A number of a dtype."""
    match DTYPES[dtype].kind:
        case "float":
            return constant(rng.choice(FLOATS), dtype)
        case "bool":
            return constant(rng.random() < 0.5, dtype)
    return constant(rng.randrange(5), dtype)


def random_value(rng: Random, dtype: str, depth: int) -> Value:
    """A value of a dtype, at most `depth` deep."""
    kind = rng.randrange(7) if depth else rng.randrange(3)
    match kind:
        case 0:
            return random_constant(rng, dtype)
        case 1 | 2:
            if dtype == "i64" and kind == 1:
                return Index("i64", rng.choice(INDICES[:5]))
            return Load(dtype, BY_DTYPE[dtype], rng.choice(INDICES))
        case 3:
            cond = random_value(rng, "b8", depth - 1)
            return Masked(dtype, cond, random_value(rng, dtype, depth - 1), random_constant(rng, dtype))
        case 4:
            place = random_value(rng, "i64", depth - 1)
            return Load(dtype, BY_DTYPE[dtype], SLOT * 3 + i, ((SLOT, place),))
    return random_op(rng, dtype, depth - 1)


def random_op(rng: Random, dtype: str, depth: int) -> Value:
    """A scalar function with a result of a dtype."""
    rows = list(SCALAR_OPS.values())
    while True:
        row, source = rng.choice(rows), rng.choice(sorted(BY_DTYPE))
        if row.name == "to":
            return Op(dtype, "to", (random_value(rng, source, depth),))
        if row.name == "where":
            branches = (random_value(rng, dtype, depth), random_value(rng, dtype, depth))
            return Op(dtype, "where", (random_value(rng, "b8", depth), *branches))
        if DTYPES[source].kind in row.takes.split() and result_dtype(row.name, source) == dtype:
            return Op(dtype, row.name, tuple(random_value(rng, source, depth) for _ in range(row.arity)))


def random_store(rng: Random) -> Store:
    """A store of a reduction of a random value."""
    dtype = rng.choice(["f32", "f64", "i64", "u8", "bf16"])
    body = random_value(rng, dtype, rng.randrange(6))
    name = rng.choice(["sum", "max", "prod", "min"])
    folded = Reduce(dtype, name, (INNER,), body)
    value = random_op(rng, dtype, 0) if rng.random() < 0.2 else Op(dtype, "max", (folded, random_constant(rng, dtype)))
    return Store(
        BY_DTYPE[dtype], i * 4 + j, value if INNER.var not in variables(value) else folded, rng.choice(["set", "max"])
    )


def variables(value: Value) -> set[object]:
    """Variables of loads and indices in a value, those that a reduction binds left out."""
    inside = {
        v
        for n in values_of(value)
        if isinstance(n, (Load, Index))
        for v in (n.index if isinstance(n, Load) else n.expr).vars()
    }
    return inside - {a.var for n in values_of(value) if isinstance(n, Reduce) for a in n.axes}


@given(st.integers(0, 1 << 32))
@example(1840050)  # a name that only the second store's reduction uses
@settings(max_examples=200, deadline=None)
def test_generated_programs_read_back(seed: int) -> None:
    rng = Random(seed)
    nest = Nest("n0", OUTER, tuple(random_store(rng) for _ in range(rng.randint(1, 3))))
    view = Ref("a", exprs([2]), exprs([1]), ZERO)
    call = Extern("n1", "aten::x", (view, Enum("dtype", "f32")), (("k", (1, None)),), ("b", None))
    program = LoopProgram("f", BUFFERS, (nest, call), tuple(b.name for b in BUFFERS), (), (view,), Recipe())
    check(program)
