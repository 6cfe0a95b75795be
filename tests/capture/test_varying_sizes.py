"""What varies from call to call becomes a symbol at its second value, unless that is asked not to be."""

import pytest
import torch
from torch import nn

import firebrick
from firebrick.capture import hook


def compiles(function, calls, plain=None, **options):
    """Call with each of the arguments, and return how many graphs that took; results are eager's."""
    compiled, before = firebrick.compile(function, **options), firebrick.graphs_compiled()
    for args in calls:
        torch.testing.assert_close(compiled(*args), (plain or function)(*args), rtol=1e-4, atol=1e-5)
    return firebrick.graphs_compiled() - before


def rows(*sizes):
    return [(torch.randn(n, 8),) for n in sizes]


def test_a_second_size_is_compiled_for_all():
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        assert compiles(model, rows(*range(3, 23))) == 2


def test_dimensions_that_vary_one_after_the_other():
    sizes = [(3, 5), (3, 6), (3, 9), (4, 9), (7, 2), (5, 5), (3, 5)]
    assert compiles(lambda x: x.softmax(1) * x.sum(), [(torch.randn(*s),) for s in sizes]) == 3


def test_sizes_that_are_asked_to_be_numbers():
    assert compiles(lambda x: x * 2 + 1, rows(3, 4, 5), dynamic=False) == 3
    calls = rows(3, 4, 5)
    for (x,) in calls:
        firebrick.mark_static(x)
    assert compiles(lambda x: x * 2 - 1, calls) == 3


def test_another_rank_or_dtype_is_no_other_size():
    calls = [
        (torch.randn(3, 4),),
        (torch.randn(5, 4, 3),),
        (torch.ones(6, 2, dtype=torch.int64),),
        (torch.randn(3, 4),),
    ]
    compiled = firebrick.compile(lambda x: x * 3)
    for args in calls:
        assert torch.equal(compiled(*args), args[0] * 3)
    assert not any(g.kind == "SHAPE" for e in hook.entries(compiled.__wrapped__.__code__) for g in e.plan.guards)


def test_what_was_compiled_for_one_size_goes_before_what_is_for_all():
    def function(x):
        return x * 5

    compiled = firebrick.compile(function)
    for (x,) in rows(3, 4, 5, 3, 6, 3):
        assert torch.equal(compiled(x), x * 5)
    one, many = hook.entries(function.__code__)
    assert (one.hits, many.hits) == (3, 3)
    assert not any(guard.kind == "SHAPE" for guard in one.plan.guards)


def test_functions_of_functions_over_sizes():
    def function(x):
        return torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x)

    assert compiles(function, rows(3, 4, 5, 6)) <= 4


@pytest.mark.parametrize("branch", [torch.cond, lambda p, a, b, args: a(*args)])
def test_branches_over_sizes(branch):
    def function(x):
        return branch(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)) * 2

    compiled = firebrick.compile(function)
    for (x,) in rows(3, 4, 5):
        torch.testing.assert_close(compiled(x.abs()), (x.abs() + 1) * 2)


def test_what_needs_a_number_is_compiled_for_each():
    def function(x):
        for _ in range(x.shape[0]):
            x = x + 1
        return x

    assert compiles(function, rows(2, 3, 4)) == 3


def test_a_strided_row_of_varying_length():
    model = nn.Linear(8, 4).eval()
    with torch.no_grad():
        calls = [(torch.randn(4, n, 8),) for n in (5, 7, 9, 30)]
        assert compiles(lambda x: model(x[:, 0]).tanh(), calls) == 2


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("first", [False, True])
def test_recurrent_layers_over_lengths(kind, first):
    model = kind(6, 20, 2, batch_first=first, bidirectional=True).eval()
    with torch.no_grad():
        sizes = [(3, n, 6) if first else (n, 3, 6) for n in (2, 5, 9, 40, 1, 7)]
        assert compiles(model, [(torch.randn(*s),) for s in sizes]) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x @ x[0],
        lambda x: torch.diag_embed(x),
        lambda x: torch.addmv(x[:, 0], x, x[0]),
        lambda x: torch.addr(x, x[:, 0], x[0]),
    ],
)
def test_ops_whose_own_meta_kernels_know_numbers_only(function):
    assert compiles(function, [(torch.randn(*s),) for s in [(3, 5), (4, 7), (6, 2), (9, 30)]]) == 2
