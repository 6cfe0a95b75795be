"""Writes at places that come from data: results, order of updates, threads, what happens in place, and errors."""

import pytest
import torch
from agree import agree, calls, launches

import firebrick
from firebrick.ir.index.expr import var
from firebrick.ir.kernels.groups import Statement
from firebrick.ir.loops.constructors import constant, load
from firebrick.ir.loops.program import Store
from firebrick.targets.tree_order import apart

pytestmark = pytest.mark.compiler


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def ints(high, *shape, low=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(4))


def places(rows, columns, high):
    """Different places in each row."""
    return torch.stack(
        [torch.randperm(high, generator=torch.Generator().manual_seed(k))[:columns] for k in range(rows)]
    )


X = rand(9, 37)
ROWS = torch.tensor([3, -1, 0, 5])
UPDATES = {
    "scatter": (lambda x, i, s: x.scatter(1, i, s), X, places(9, 20, 37), rand(9, 20)),
    "scatter first": (lambda x, i, s: x.scatter(0, i, s), X, places(37, 6, 9).t(), rand(6, 37)),
    "scatter part": (lambda x, i, s: x.scatter(-1, i, s), X, places(4, 20, 37), rand(8, 30)),
    "scatter number": (lambda x, i: x.scatter(1, i, 2.5), X, ints(37, 9, 20)),
    "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), X, ints(37, 9, 90), rand(9, 90)),
    "scatter_add first": (lambda x, i, s: x.scatter_add(0, i, s), X, ints(9, 40, 37), rand(40, 37)),
    "scatter_add rows": (lambda x, i, s: x.scatter_add(0, i[:, None].expand(-1, 37), s), X, ints(9, 40), rand(40, 37)),
    "scatter_reduce": (lambda x, i, s: x.scatter_reduce(1, i, s, "amax"), X, ints(37, 9, 90), rand(9, 90)),
    "scatter_reduce low": (lambda x, i, s: x.scatter_reduce(0, i, s, "amin"), X, ints(9, 30, 37), rand(30, 37)),
    "index_put": (lambda x, i, s: x.index_put((i,), s), X, ROWS, rand(4, 37)),
    "index_put broadcast": (lambda x, i, s: x.index_put((i,), s), X, ROWS, rand(1, 37)),
    "index_put number": (lambda x, i: x.index_put((i,), x.new_tensor(2.0)), X, ROWS),
    "index_put adding": (lambda x, i, s: x.index_put((i,), s, accumulate=True), X, ints(9, 50, low=-9), rand(50, 37)),
    "index_put pair": (
        lambda x, i, j, s: x.index_put((i, j), s, accumulate=True),
        X,
        ints(9, 50),
        ints(37, 50),
        rand(50),
    ),
    "index_put inner": (lambda x, i, s: torch.ops.aten.index_put(x, [None, i], s), X, ints(37, 3)[:1], rand(9, 1)),
    "index_put apart": (
        lambda x, i, j, s: torch.ops.aten.index_put(x, [i, None, j], s, True),
        *(rand(5, 3, 7), ints(5, 4), ints(7, 2, 4), rand(2, 4, 3)),
    ),
    "index_add": (lambda x, i, s: x.index_add(0, i, s, alpha=2), X, ints(9, 50), rand(50, 37)),
    "index_add last": (lambda x, i, s: x.index_add(-1, i, s), X, ints(37, 50), rand(9, 50)),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), X, ROWS % 9, rand(4, 37)),
    "index_fill": (lambda x, i: x.index_fill(1, i, 3.0), X, ROWS),
    "of a transposed tensor": (lambda x, i, s: x.t().index_put((i,), s), X, ROWS, rand(4, 9)),
    "strided source": (lambda x, i, s: x.index_add(0, i, s[:, ::2]), X, ints(9, 50), rand(50, 74)),
    "nothing": (lambda x, i, s: x.index_add(0, i, s), X, ints(9, 0), rand(0, 37)),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_agree_and_need_no_call(name):
    fn, *inputs = UPDATES[name]
    assert calls(agree(lambda *a: fn(a[0] * 2, *a[1:]) + 1, *inputs, tolerance=2e-6)) == []


def test_every_width(simd):
    def fn(x, i, j, s):
        return (
            x.index_add(0, i, s),
            x.scatter_add(0, j, s),
            x.scatter(1, j.t()[:9] % 37, s.t()[:9]),
            x.index_fill(0, i, 1),
        )

    agree(fn, X, ints(9, 50), ints(9, 50, 37), rand(50, 37), simd=simd, tolerance=2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.uint8])
def test_dtypes(dtype):
    made = agree(
        lambda x, i, s: (x.index_add(0, i, s), x.scatter_reduce(0, i[:, None].expand(-1, 37), s, "amax")),
        *((X * 3).to(dtype), ints(9, 50), (rand(50, 37) * 3).to(dtype)),
        exact=False,
    )
    assert calls(made) == []


def test_the_last_of_equal_places_wins_and_sums_have_eager_s_order():
    index = torch.tensor([2, 0, 2, 2, 0])
    agree(lambda x, i, s: x.index_put((i,), s), X, index, rand(5, 37))
    big = torch.tensor([1e8, 1.0, -1e8, 1.0, 3.0])
    agree(lambda x, i, s: x.index_add(0, i, s), torch.zeros(3), torch.tensor([1, 1, 1, 1, 1]), big, exact=False)


def test_the_source_is_computed_in_the_kernel_that_updates():
    made = agree(lambda x, i, s: x.scatter_add(0, i, s.exp() * 2), X, ints(9, 40, 37), rand(40, 37), tolerance=1e-5)
    assert (launches(made), calls(made)) == (3, []), "the copy, the check, the update"


def test_updates_of_one_tensor_after_the_other_copy_it_once():
    def fn(x, i, s):
        return ((x @ x.t()).index_fill(0, i, 1.0)).index_add(0, i, s).index_put((i,), s)

    made = agree(fn, X, torch.tensor([1, 4]), rand(2, 9), tolerance=1e-5)
    assert sum(b.dtype == "f32" and b.kind == "output" for b in made.program.buffers) == 1


def test_a_cache_is_updated_where_it_is():
    cache, new = torch.zeros(2, 3, 64, 8), rand(2, 3, 1, 8)

    def step(cache, place, new):
        cache.index_copy_(2, place, new)
        return cache[:, :, :4].sum()

    compiled = firebrick.compile(step)
    for k in (2, 0, 63):
        want = cache.clone()
        expected = step(want, torch.tensor([k]), new + k)
        before = cache._version
        torch.testing.assert_close(compiled(cache, torch.tensor([k]), new + k), expected)
        assert torch.equal(cache, want)
        assert cache._version > before
    with pytest.raises(IndexError, match="index 64 is out of bounds"):
        compiled(cache, torch.tensor([64]), new)
    assert torch.equal(cache, want), "nothing is written before the check"


def test_old_values_are_read_before_an_update_in_place():
    def fn(x, i, s):
        old = x * 2
        x.index_add_(0, i, s)
        return old, x.sum(), x[i]

    x, y = X.clone(), X.clone()
    i, s = torch.tensor([1, 1, 5]), rand(3, 37)
    for want, got in zip(fn(x, i, s), firebrick.compile(fn)(y, i, s), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(x, y)


def test_an_update_that_reads_what_it_changes():
    def fn(x, i):
        x.index_put_((i,), x[i.flip(0)] + 1)
        return x.clone()

    x, y = X.clone(), X.clone()
    i = torch.tensor([1, 2, 5])
    torch.testing.assert_close(firebrick.compile(fn)(y, i), fn(x, i))
    torch.testing.assert_close(x, y)


ERRORS = {
    "scatter": lambda x, i: x.scatter(0, i[:, None], torch.ones(2, 1)) + 1,
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], torch.ones(2, 1)) + 1,
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i[:, None], torch.ones(2, 1), "amax") + 1,
    "index_put": lambda x, i: x.index_put((i,), torch.ones(2, 9)) + 1,
    "index_put adding": lambda x, i: x.index_put((i,), torch.ones(2, 9), accumulate=True) + 1,
    "index_add": lambda x, i: x.index_add(0, i, torch.ones(2, 9)) + 1,
    "index_copy": lambda x, i: x.index_copy(0, i, torch.ones(2, 9)) + 1,
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0) + 1,
}


@pytest.mark.parametrize("bad", [-10, -1, 0, 9])
@pytest.mark.parametrize("name", ERRORS)
def test_indices_outside_raise_as_eager_does(name, bad):
    fn, x, index = ERRORS[name], rand(9, 9), torch.tensor([1, bad])
    compiled = firebrick.compile(fn)
    try:
        want = fn(x, index)
    except (IndexError, RuntimeError) as error:
        with pytest.raises(type(error)) as caught:
            compiled(x, index)
        assert str(caught.value) == str(error).splitlines()[0]
    else:
        torch.testing.assert_close(compiled(x, index), want)


def test_loops_whose_iterations_update_different_elements():
    i, j, k = var("i", 0, 7), var("j", 0, 7), var("k", 0, 3)
    x = var("x0", 0, 9)
    bound = ((x, load("a", "i64", i)),)

    def free(index, *loops):
        store = Store("b", index, constant(1.0, "f32"), "add", bound)
        return [apart([Statement(frozenset(), store)])(v) for v in loops]

    assert free(8 * x + j, i, j) == [False, True]
    assert free(10 * i + x, i) == [True]
    assert free(9 * i + x, i) == [False]
    assert free(64 * x + 8 * j + k, i, j, k) == [False, True, True]
    assert free(4 * x + j, j) == [False]
    assert free(j // 2 + 100 * x, j) == [False]
