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
    sizes = [(3, 5), (4, 5), (7, 5), (7, 9), (7, 2), (5, 5), (3, 5)]
    assert compiles(lambda x: x.softmax(1) * x.sum(), [(torch.randn(*s),) for s in sizes]) == 3


def test_what_comes_before_a_dimension_that_varies_does_so_too():
    sizes = [(3, 5), (3, 6), (3, 9), (4, 9), (7, 2), (5, 5), (3, 5), (1, 4)]
    assert compiles(lambda x: x.softmax(1) * x.sum(), [(torch.randn(*s),) for s in sizes]) == 2
    assert compiles(lambda i: i * 2, [(torch.ones(*s, dtype=torch.long),) for s in ((3, 5), (4, 5), (4, 9))]) == 2


def test_a_size_that_did_not_vary_and_is_needed_keeps_no_other_from_being_a_symbol():
    def pair(edges):
        source, target = edges
        return source * target

    assert compiles(pair, [(torch.ones(2, n, dtype=torch.long),) for n in (5, 6, 9, 3)]) == 2


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


class Layer:
    """A cache of one layer: filled by the first call, and longer with each."""

    def __init__(self, grows):
        self.filled, self.grows, self.rows = False, grows, None

    def add(self, x):
        rows = x if not self.filled else torch.cat([self.rows, x], 1)
        self.filled, self.rows = True, rows if self.grows or not self.filled else self.rows
        return rows


def decode(cache, x, prompt):
    return (cache.add(x) @ prompt.transpose(1, 2)).softmax(1).sum(1)


@pytest.mark.parametrize("grows", [True, False])
def test_a_cache_that_is_filled_takes_one_compile_for_all_steps_of_all_prompts(grows):
    compiled, before = firebrick.compile(decode), firebrick.graphs_compiled()
    for length in (5, 8, 3):
        caches, prompt = (Layer(grows), Layer(grows)), torch.randn(1, length, 4)
        for _ in range(4):
            x = torch.randn(1, 1, 4)
            torch.testing.assert_close(compiled(caches[0], x, prompt), decode(caches[1], x, prompt))
    assert firebrick.graphs_compiled() - before == 3


def test_a_row_that_grows_from_one_is_compiled_once():
    def function(state, x):
        state.rows = torch.cat([state.rows, x])
        return state.rows.softmax(0)

    compiled, before = firebrick.compile(function), firebrick.graphs_compiled()
    states = Layer(True), Layer(True)
    states[0].rows = states[1].rows = torch.randn(1, 4)
    for _ in range(5):
        x = torch.randn(1, 4)
        torch.testing.assert_close(compiled(states[0], x), function(states[1], x))
    assert firebrick.graphs_compiled() - before == 1


def test_state_of_a_module_says_nothing_of_sizes():
    class Lazy(nn.Module):
        filled = False

        def forward(self, x):
            if not self.filled:
                self.filled = True
            return x * 2

    model = Lazy()
    compiled = firebrick.compile(model)
    for _ in range(3):
        compiled(torch.randn(3, 4))
    guards = [g for e in hook.entries(Lazy.forward.__code__) for g in e.plan.guards]
    assert not any(g.kind == "SHAPE" for g in guards)


def test_a_size_that_varies_and_is_one_is_compiled_with_the_others_unless_it_is_expanded():
    assert compiles(lambda x: x.softmax(1) * 3, rows(4, 1, 7, 2)) == 2
    y = torch.randn(6, 8)
    calls = [(torch.randn(n, 8), y[: max(n, 1)] if n > 1 else y) for n in (4, 1, 5, 1)]
    assert compiles(lambda x, y: x + y, calls) <= 4
