"""Sizes outside of what a symbol stands for, facts about them, and what a thousand of them leave behind."""

import gc
import weakref

import pytest
import torch
from torch import nn

import firebrick
from firebrick.capture import hook


def test_a_thousand_sizes_leave_nothing_behind():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def function(x):
        return model(x).sum(0)

    compiled, before, counts = firebrick.compile(function), firebrick.graphs_compiled(), []
    for n in range(2, 1002):
        x = torch.randn(n, 4)
        compiled(x).sum().backward()
        if n in (400, 1001):
            del x
            gc.collect()
            counts.append(len(gc.get_objects()))
        elif n == 500:
            last = weakref.ref(x)
    assert last() is None
    assert firebrick.graphs_compiled() - before == 2
    assert len(hook.entries(function.__code__)) == 2
    assert counts[1] - counts[0] < 50


def test_calls_outside_of_marked_bounds():
    compiled = firebrick.compile(lambda x: x * 2 + x.shape[0])
    for n in (5, 7, 12, 1, 0):
        x = torch.randn(n, 3)
        if n == 5:
            firebrick.mark_dynamic(x, 0, min=2, max=10)
        assert torch.equal(compiled(x), x * 2 + n)


@pytest.mark.parametrize("bounds", [(5, 3), (-1, 3), (-4, None), (0, -1), (None, -1)])
def test_bounds_that_no_size_meets(bounds):
    with pytest.raises(
        firebrick.errors.ConfigError, match=rf"(?s)no size is from {bounds[0]} to {bounds[1]}.*fix: give"
    ):
        firebrick.mark_dynamic(torch.randn(4), 0, min=bounds[0], max=bounds[1])


@pytest.mark.parametrize("bounds", [(5, None), (5, 8), (None, 3)])
def test_bounds_that_the_size_at_hand_is_not_within(bounds):
    with pytest.raises(firebrick.errors.ConfigError, match="(?s)dimension 0 has size 4, outside of .*fix: give bounds"):
        firebrick.mark_dynamic(torch.randn(4), 0, min=bounds[0], max=bounds[1])


def test_sizes_of_nothing():
    compiled = firebrick.compile(lambda x, y: torch.cat([x.relu(), y]).sum(0))
    for a, b in ((3, 4), (5, 2), (0, 4), (6, 0), (0, 0), (2, 9)):
        x, y = torch.randn(a, 3), torch.randn(b, 3)
        torch.testing.assert_close(compiled(x, y), torch.cat([x.relu(), y]).sum(0))


def test_facts_that_a_program_states():
    def function(x):
        torch._check(x.shape[0] >= 4)
        torch._check(x.shape[0] % 2 == 0, lambda: "an even number of rows")
        return x.view(-1, 2, 3).sum(1)

    compiled, before = firebrick.compile(function), firebrick.graphs_compiled()
    for n in (4, 6, 8, 20):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), function(x))
    assert firebrick.graphs_compiled() - before == 2
    for n in (2, 7):
        with pytest.raises(RuntimeError):
            compiled(torch.randn(n, 3))
    torch.testing.assert_close(compiled(x), function(x))


def test_facts_that_contradict_each_other():
    def function(x):
        torch._check(x.shape[0] > 3)
        torch._check(x.shape[0] < 3)
        return x + 1

    compiled = firebrick.compile(function)
    for n in (2, 3, 5):
        with pytest.raises(RuntimeError):
            compiled(torch.randn(n))


def test_products_beyond_64_bits():
    def function(x, n):
        return x + 1, x.shape[0] * n * n, x.shape[0] * 2**62 * 4, (x.shape[0] * n * n) // n

    compiled = firebrick.compile(function)
    for rows, n in ((3, 2**30), (5, 2**31 - 1), (7, 2**40), (9, 12345678901)):
        x = torch.randn(rows)
        ours, theirs = compiled(x, n), function(x, n)
        assert ours[1:] == theirs[1:]
        assert torch.equal(ours[0], theirs[0])


def test_a_result_that_no_memory_holds():
    compiled = firebrick.compile(lambda x: x.new_empty(x.shape[0] * 2**40, x.shape[0] * 2**40))
    for n in (3, 5, 7):
        with pytest.raises(RuntimeError):
            compiled(torch.randn(n))


def test_negative_sizes_are_eagers_error():
    compiled = firebrick.compile(lambda x: x.new_zeros(x.shape[0] - 6))
    for n in (8, 9, 7, 6):
        assert compiled(torch.randn(n)).shape == (n - 6,)
    for n in (3, 5):
        with pytest.raises(RuntimeError):
            compiled(torch.randn(n))
