"""Constructors of scalar values: what they fold and simplify is exact, and what they refuse."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firebrick.errors import InternalError
from firebrick.ir.index.expr import const, var
from firebrick.ir.loops.constructors import FALSE, TRUE, cast, constant, index_value, load, masked, op, reduce, where
from firebrick.ir.loops.dtypes import DTYPES
from firebrick.ir.loops.program import Axis, Const, Index, Load, Op
from firebrick.ir.loops.scalar_ops import SCALAR_OPS

i = var("i0", 0, 7)
x = load("x", "f32", i)
n = load("n", "i64", i)
b = load("b", "b8", i)


def test_values_are_interned() -> None:
    assert op("add", x, x) is Op("f32", "add", (x, x))
    assert Load("f32", "x", i) is Load("f32", "x", i, ())
    assert Const(dtype="f32", value=1.0) is constant(1, "f32")
    assert constant(0.0, "f32") is not constant(-0.0, "f32")
    assert constant(1, "i64") is not constant(True, "b8")
    with pytest.raises(TypeError):
        Op("f32", name="neg", arguments=(x,))


def test_constants_are_what_the_dtype_holds() -> None:
    assert constant(0.1, "f32").value == torch.tensor(0.1).item()
    assert constant(0.1, "bf16").value == torch.tensor(0.1, dtype=torch.bfloat16).item()
    assert constant(1e300, "f32").value == math.inf
    assert constant(300, "u8").value == 44
    assert constant(200, "i8").value == -56
    with pytest.raises(InternalError):
        constant(math.inf, "i32")


def test_simplification() -> None:
    one, zero, minus = constant(1.0, "f32"), constant(0.0, "f32"), constant(-0.0, "f32")
    assert op("mul", x, one) is x
    assert op("mul", one, x) is x
    assert op("div", x, one) is x
    assert op("sub", x, zero) is x
    assert op("add", x, minus) is x
    assert op("add", x, zero) is not x
    assert op("mul", x, zero) is not zero
    assert op("mul", n, constant(0, "i64")) is constant(0, "i64")
    assert op("add", n, constant(0, "i64")) is n
    assert op("neg", op("neg", x)) is x
    assert op("not", op("not", b)) is b
    assert op("and", b, TRUE) is b
    assert op("and", FALSE, b) is FALSE
    assert op("or", b, TRUE) is TRUE
    assert op("or", b, b) is b
    assert op("max", x, x) is x
    assert where(TRUE, x, op("neg", x)) is x
    assert where(b, x, x) is x
    assert masked(TRUE, x, 0) is x
    assert masked(FALSE, x, 2) is constant(2.0, "f32")


def test_casts() -> None:
    assert cast(x, "f32") is x
    half = load("h", "bf16", i)
    assert cast(cast(half, "f32"), "bf16") is half
    assert cast(cast(x, "bf16"), "f32") is not x
    assert cast(cast(half, "f32"), "f64") is Op("f64", "to", (half,))
    assert cast(constant(2.7, "f32"), "i64") is constant(2, "i64")
    assert cast(constant(0.5, "f32"), "b8") is TRUE
    assert isinstance(cast(constant(1e30, "f32"), "i32"), Op)


def test_numbers_of_indices_are_done_in_the_algebra() -> None:
    k = index_value(i)
    assert op("add", op("mul", k, constant(2, "i64")), k) is Index("i64", 3 * i)
    assert op("floordiv", k, constant(8, "i64")) is constant(0, "i64")
    assert op("lt", k, constant(8, "i64")) is TRUE
    assert op("ge", k, constant(8, "i64")) is FALSE
    assert op("eq", k, k) is TRUE
    assert isinstance(op("lt", k, constant(3, "i64")), Op)
    assert isinstance(op("mod", k, index_value(i + 1)), Op)
    assert index_value(const(3)) is constant(3, "i64")
    assert isinstance(index_value(i, "f32"), Op)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("add", (x, n)),
        ("add", (x,)),
        ("exp", (n,)),
        ("and", (x, x)),
        ("where", (x, x, x)),
        ("where", (b, x, n)),
        ("add", (b, b)),
    ],
)
def test_refuses(name: str, args: tuple[object, ...]) -> None:
    with pytest.raises(InternalError):
        op(name, *args)


def test_reductions_refuse() -> None:
    axis = Axis(i, const(8))
    assert reduce("argmax", [axis], x).dtype == "i64"
    assert reduce("any", [axis], b).dtype == "b8"
    with pytest.raises(InternalError):
        reduce("any", [axis], x)


@given(st.integers(0, 1 << 32))
@settings(max_examples=300, deadline=None)
def test_folding_is_what_the_reference_computes(seed: int) -> None:
    rng = Random(seed)
    row = rng.choice([r for r in SCALAR_OPS.values() if r.name != "to"])
    dtype = rng.choice([d for d in ("f32", "f64", "i64", "i32", "u8", "b8") if DTYPES[d].kind in row.takes.split()])
    numbers = {"float": [0.0, -0.0, 1.0, -2.5, math.inf, math.nan, 3e38], "bool": [True, False]}
    choices = numbers.get(DTYPES[dtype].kind, [0, 1, 2, 7, 100])
    args = [constant(rng.choice(choices), dtype) for _ in range(row.arity)]
    if row.name == "where":
        args[0] = constant(rng.random() < 0.5, "b8")
    made = op(row.name, *args)
    if isinstance(made, Const):
        tensors = [torch.tensor(a.value, dtype=DTYPES[a.dtype].torch) for a in args]
        want = row.reference(*tensors)
        got = torch.tensor(made.value, dtype=DTYPES[made.dtype].torch)
        assert torch.equal(torch.nan_to_num(want, 7.0), torch.nan_to_num(got, 7.0))
        assert torch.signbit(want).item() == torch.signbit(got).item() or bool(want.isnan())
