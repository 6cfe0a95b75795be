"""The checker refuses illegal programs, each with its reason; the interpreter refuses what would corrupt memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from tests.ir.interp import find_op, run

from firebrick.errors import InternalError
from firebrick.ir.index.expr import ONE, ZERO, const, var
from firebrick.ir.loops.check import check
from firebrick.ir.loops.parse import parse
from firebrick.ir.loops.program import Axis, Buffer, Const, Index, Load, LoopProgram, Nest, Op, Reduce, Ref, Store

if TYPE_CHECKING:
    from firebrick.ir.loops.program import Value

i = var("i0", 0, 3)
r = var("r0", 0, 3)
AXIS, INNER = Axis(i, const(4)), Axis(r, const(4))
X = Load("f32", "x", i)


def program(value: Value, axis: Axis = AXIS, buffer: str = "%0") -> LoopProgram:
    """One nest that stores `value`."""
    buffers = tuple(
        Buffer(name, dtype, (const(4),), (ONE,), kind)
        for name, dtype, kind in [
            ("x", "f32", "input"),
            ("n", "i64", "input"),
            ("%0", "f32", "temp"),
            ("%1", "f32", "temp"),
        ]
    )
    nest = Nest("n0", (axis,), (Store(buffer, i, value),))
    return LoopProgram("f", buffers, (nest,), ("x", "n"), (), (Ref(buffer, (const(4),), (ONE,), ZERO),))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: program(Load("f32", "%1", i)), "read before it is computed"),
        (lambda: program(Load("f32", "q", i)), "unknown buffer"),
        (lambda: program(Load("f64", "x", i)), "is not f64"),
        (lambda: program(Op("f64", "to", (X,))), "store of f64"),
        (lambda: program(X, buffer="q"), "unknown buffer"),
        (lambda: program(Load("f32", "x", r)), "out of scope"),
        (lambda: program(Op("f32", "add", (X,))), "arguments"),
        (lambda: program(Op("f32", "frob", (X,))), "arguments"),
        (lambda: program(Op("f32", "add", (X, Const("f64", 1.0)))), "add of"),
        (lambda: program(Op("f32", "bitand", (X, X))), "bitand of f32"),
        (lambda: program(Op("f32", "lt", (X, X))), "gives b8"),
        (lambda: program(Op("f32", "where", (X, X, X))), "condition"),
        (lambda: program(Const("f32", 1)), "constant 1 of f32"),
        (lambda: program(Op("f32", "to", (Index("i64", const(2)),))), "index 2"),
        (lambda: program(Reduce("b8", "any", (INNER,), X)), "any of f32"),
        (lambda: program(X, Axis(i, const(5))), "range"),
        (lambda: program(Load("f32", "x", var("x0", 0, 3), ((var("x0", 0, 3), X),))), "place x0"),
        (lambda: program(Reduce("f32", "sum", (Axis(var("i0", 0, 2), const(3)),), X)), "two ranges"),
    ],
)
def test_illegal(made, why: str) -> None:
    with pytest.raises(InternalError, match=why):
        check(made())


def test_legal() -> None:
    check(program(Op("f32", "add", (X, Reduce("f32", "sum", (INNER,), Load("f32", "x", r))))))


HEAD = "loops f\n  input x: f32[4], n: i64[4]\n  output %0: f32[4]\n"


def test_run() -> None:
    x, n = torch.tensor([1.0, -2.0, 3.0, 0.5]), torch.tensor([3, 0, 1, 1])
    text = HEAD + (
        "  n0 for i0 in 4\n"
        "    %0[i0] = masked(i64(i0) < 3, x[i0 + 1], 7.0) + x[x0, x0 := below(n[i0], 4)]\n"
        "  n1 extern x = aten::clamp.out(x, 0) into\n"
        "  out %0\n"
    )
    (out,) = run(parse(text), [x, n], {})
    assert out.tolist() == [-2 + 0.5, 3 + 1, 0.5 - 2, 7 - 2]
    assert x.tolist() == [1, 0, 3, 0.5]


def test_atomic_stores() -> None:
    x, n = torch.tensor([1.0, -2.0, 3.0, 0.5]), torch.tensor([3, 0, 3, 1])
    text = HEAD + (
        "  n0 for i0 in 4\n    %0[i0] = f32(0.0)\n"
        "  n1 for i0 in 4\n    %0[x0, x0 := below(n[i0], 4)] = atomic_add(x[i0])\n"
        "  n2 for i0 in 4\n    %0[x0, x0 := below(n[i0], 4)] = atomic_max(x[i0])\n"
        "  out %0\n"
    )
    (out,) = run(parse(text), [x, n], {})
    assert out.tolist() == [-2, 0.5, 0, 4]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("  n0 for i0 in 4\n    %0[i0] = x[i0 + 1]", "index 1..4 of x"),
        ("  n0 for i0 in 4\n    %0[i0 - 1] = x[i0]", "index -1..2 of %0"),
        ("  n0 for i0 in 4\n    %0[i0] = x[x0, x0 := below(n[i0], 4)]", "index 0..9 of x"),
        ("  n0 extern %0 = aten::sum(x)", "gave torch.float32"),
    ],
)
def test_run_refuses(line: str, why: str) -> None:
    with pytest.raises(InternalError, match=why):
        run(parse(f"{HEAD}{line}\n  out %0\n"), [torch.ones(4), torch.tensor([0, 9, 1, 1])], {})


def test_unfilled_output_is_refused() -> None:
    with pytest.raises(InternalError, match="used before"):
        run(parse(f"{HEAD}  out %0\n"), [torch.ones(4), torch.ones(4)], {})


def test_find_op() -> None:
    assert find_op("aten::mm.out") is torch.ops.aten.mm.out
    assert find_op("aten::mm") is torch.ops.aten.mm.default
