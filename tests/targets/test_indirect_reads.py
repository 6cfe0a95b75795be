"""Reads at places that come from data: results, what they fuse with, and errors like eager's."""

import pytest
import torch
import torch.nn.functional as F
from agree import agree, calls, launches

import firebrick
from firebrick.config import Config
from firebrick.fuse import schedule
from firebrick.ir.index.expr import var
from firebrick.ir.loops.bounds import CHECK, span
from firebrick.ir.loops.check import check
from firebrick.ir.loops.constructors import cast, constant, op
from firebrick.ir.loops.parse import parse
from firebrick.ir.loops.program import Extern, Load
from firebrick.ir.loops.show import show
from firebrick.targets.cpu.cpu_target import detect

pytestmark = pytest.mark.compiler


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def ints(high, *shape, low=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(4))


X = rand(9, 37)
READS = {
    "gather last": (lambda x, i: x.gather(1, i) + 1, X, ints(37, 9, 21)),
    "gather first": (lambda x, i: x.gather(0, i) + 1, X, ints(9, 30, 37)),
    "gather part": (lambda x, i: x.gather(-1, i) * 2, X, ints(37, 4, 50)),
    "index": (lambda x, i: x[i] + 1, X, ints(9, 17, low=-9)),
    "index pair": (lambda x, i, j: x[i, j] + 1, X, ints(9, 5, 1, low=-9), ints(37, 1, 6, low=-37)),
    "index inner": (lambda x, i: x[:, i] + 1, X, ints(37, 3, 4, low=-37)),
    "index apart": (lambda x, i, j: x[i, :, j] + 1, rand(5, 3, 7), ints(5, 4), ints(7, 2, 4, low=-7)),
    "index by i32": (lambda x, i: x[i] + 1, X, ints(9, 6).int()),
    "index of a transposed tensor": (lambda x, i: x.t()[i] + 1, X, ints(37, 6)),
    "index by a strided tensor": (lambda x, i: x[i[:, ::2]] + 1, X, ints(9, 4, 6)),
    "index by a number of no dimension": (lambda x, i: torch.ops.aten.index(x, [i]) + 1, X, torch.tensor(-2)),
    "index_select": (lambda x, i: x.index_select(0, i) + 1, X, ints(9, 11)),
    "index_select last": (lambda x, i: x.index_select(-1, i) + 1, X, ints(37, 11)),
    "take": (lambda x, i: x.take(i) + 1, X.t(), ints(9 * 37, 4, 5, low=-9 * 37)),
    "embedding": (lambda w, i: F.embedding(i, w) + 1, X, ints(9, 2, 3)),
    "empty": (lambda x, i: x[i] + 1, X, ints(9, 0)),
    "of nothing by nothing": (lambda x, i: x[i] + 1, X[:0], ints(9, 0)),
    "bool": (lambda x, i: ~(x > 0)[i], X, ints(9, 20)),
}


@pytest.mark.parametrize("name", READS)
def test_reads_agree_and_need_no_call(name):
    fn, *inputs = READS[name]
    assert calls(agree(fn, *inputs)) == []


def test_every_width(simd):
    fn = lambda x, i, j: (x[i, j] * 2, x.gather(1, j).exp(), F.embedding(i, x).sum(-1))  # noqa: E731
    agree(fn, X, ints(9, 9, 19, low=-9).abs() % 9, ints(37, 9, 19), simd=simd, tolerance=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8])
def test_dtypes(dtype):
    agree(lambda x, i: x[i] + x[i], (X * 3).to(dtype), ints(9, 20, low=-9), exact=False)


def test_what_reads_the_result_is_one_kernel_with_the_read():
    made = agree(
        lambda w, i, p: F.layer_norm(F.embedding(i, w) + p, (37,)), X, ints(9, 4, 5), rand(5, 37), tolerance=1e-5
    )
    assert (launches(made), calls(made)) == (2, []), "the check of the indices, and all the rest"


def test_an_index_is_checked_once():
    made = agree(lambda a, b, i: a[i] * b[i] + a[i], X, X + 1, ints(9, 20), tolerance=2e-6)
    assert sum(isinstance(s, Extern) and s.op == CHECK for s in made.steps) == 1


def test_indices_in_bounds_by_their_text_are_not_checked():
    def fn(x, i):
        return (
            x[i.clamp(0, 8)]
            + x[i % 9]
            + x[x.argmax(0) % 9, 0].sum()
            + x[torch.arange(9).flip(0)][:1]
            + x[i.bool().long()]
        )

    made = agree(fn, X, ints(100, 20, low=-100), tolerance=1e-5)
    assert not any(isinstance(s, Extern) for s in made.steps)


def test_a_lone_gather_of_long_rows_stays_a_call():
    made = agree(lambda x, i: x.gather(1, i), rand(99, 900), ints(900, 99, 900))
    assert (launches(made), calls(made)) == (0, ["aten::gather"])


def test_places_that_many_elements_use_are_kept_in_a_table():
    made = agree(lambda x, i: x[:, i] * 2, rand(60, 90), ints(90, 100, low=-90))
    assert launches(made) == 3, "the check, the table, the read"
    assert "below(%" in show(made.program), "which needs no more bounds"


def test_interpolation_is_one_kernel_and_its_tables():
    image = rand(2, 3, 8, 9)
    made = agree(lambda x: F.interpolate(x, size=(13, 20), mode="bilinear") * 2, image, tolerance=1e-5)
    image_name = made.program.inputs[0]
    assert calls(made) == []
    assert sum(image_name in s.args for s in made.steps) == 1, "the other kernels make small tables"


ERRORS = {
    "gather": lambda x, i: x.gather(0, i[:, None]) + 1,
    "index": lambda x, i: x[i] + 1,
    "index inner": lambda x, i: x[:, i] + 1,
    "index_select": lambda x, i: x.index_select(0, i) + 1,
    "take": lambda x, i: x.take(i * 9) + 1,
    "embedding": lambda x, i: F.embedding(i, x) + 1,
    "part of it": lambda x, i: (x[i] + 1)[:1],
}


@pytest.mark.parametrize("bad", [-400, -10, -1, 0, 9, 400])
@pytest.mark.parametrize("name", ERRORS)
def test_indices_outside_raise_as_eager_does(name, bad):
    fn, x, index = ERRORS[name], rand(9, 9), torch.tensor([1, bad])
    compiled = firebrick.compile(fn)
    compiled(x, torch.tensor([1, 2]))
    try:
        want = fn(x, index)
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error)) as caught:
            compiled(x, index)
        assert str(caught.value) == str(error).splitlines()[0]
        torch.testing.assert_close(compiled(x, index * 0), fn(x, index * 0))  # the executable is as good as before
    else:
        torch.testing.assert_close(compiled(x, index), want)


def test_a_large_dimension_without_elements_raises():
    compiled = firebrick.compile(lambda x, i: x[i] + 1)
    with pytest.raises(IndexError):
        compiled(torch.empty(0, 3), torch.tensor([0]))


CHECKED = """loops f
  input  x: f32[8], i: i64[3]
  temp   %0: i64[2]
  output %1: f32[3]
  n0 once
    v0 = i[r0]
    %0[0] = max(v0 for r0 in 3)
    %0[1] = min(v0 for r0 in 3)
  n1 extern  = firebrick::check_index(%0, 0, 7, 'IndexError', 'index {} is outside')
  n2 for i0 in 3
    %1[i0] = x[x0, x0 := below(max(min(i[i0], 7), 0), 8)]
  out  %1
"""


def test_checks_have_a_text_and_are_kept():
    program = parse(CHECKED)
    check(program)
    assert show(program) == CHECKED
    assert [s.op for s in schedule(program, {"cpu": detect(Config())}, Config()).steps if isinstance(s, Extern)] == [
        CHECK
    ]


SPANS = {
    "input": (lambda v: v, (-(1 << 63), (1 << 63) - 1)),
    "clamped": (lambda v: op("max", op("min", v, constant(7, "i64")), constant(-2, "i64")), (-2, 7)),
    "modulus": (lambda v: op("mod", v, constant(5, "i64")), (0, 4)),
    "bits": (lambda v: op("bitand", v, constant(6, "i64")), (0, 6)),
    "a byte": (lambda v: cast(cast(v, "u8"), "i64"), (0, 255)),
    "wraps around": (lambda v: op("add", cast(cast(v, "i8"), "i8"), constant(1, "i8")), (-128, 127)),
    "from a float": (
        lambda v: cast(op("min", cast(v, "f32"), constant(3.0, "f32")), "i64"),
        (-(1 << 63), (1 << 63) - 1),
    ),
    "one of two": (
        lambda v: op("where", op("lt", v, constant(0, "i64")), constant(3, "i64"), constant(9, "i64")),
        (3, 9),
    ),
}


@pytest.mark.parametrize("name", SPANS)
def test_span_of_values(name):
    make, want = SPANS[name]
    assert span(make(Load("i64", "a", var("i0", 0, 9)))) == want
