"""A result that is a view, such as `logits.transpose(1, 2)`, and results that share memory (`a, b = h.chunk(2)`) got no
gradient of a loss that the graph makes of them: `torch.autograd.grad(loss, [a])` gave None, hooks saw a part."""

import pytest
import torch
from tests.repros.test_gradients_between_results import agree, between, hooked, retained, second

import firebrick


def lone(x, w):
    y = (x @ w).sin().t()
    return y, (y @ x).cos().sum()


def narrowed(x, w):
    y = (x @ w).sin()[:, 1:]
    return y, y.exp().sum()


def lone_with_values_past_it(x, w):
    h = (x @ w).sin()
    y = h.view(-1)
    return y, y.exp().sum() + (h * w).sum()


def chunks(x, w):
    a, b = (x @ w).sin().chunk(2)
    return a, b, (a * b).sum()


def a_base_and_its_view(x, w):
    h = (x @ w).sin()
    v = h.t()
    return h, v, (v.exp() * 2).sum() + h.cos().sum()


def one_after_the_other(x, w):
    a, b = (x @ w).sin().chunk(2)
    c, d = (a * b).exp().split(1)
    return a, b, c, d, (c * d).sum() + a.sum()


def unused_parts(x, w):
    a, b, c, d = (x @ w).sin().unbind(1)
    return a, b, (c * d).sum(), (a * c).sum()


def a_view_of_an_argument(x, w):
    y = (x * 1).t()
    return x.t(), (x.t() @ w).sum() + y.sum()


def views_that_are_written_to(x, w):
    h = (x @ w).sin()
    a = h[0]
    a.mul_(2)
    return h, a, (a * h).sum()


def without_gradients_between(x, w):
    a, b = (x @ w).sin().chunk(2)
    with torch.no_grad():
        scale = a.max()
    return a, b, (a * b * scale).sum()


def under_autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a, b = (x @ w).sin().chunk(2)
    return a, b, (a * b).sum()


FUNCTIONS = [
    lone, narrowed, lone_with_values_past_it, chunks, a_base_and_its_view, one_after_the_other, unused_parts,
    a_view_of_an_argument, views_that_are_written_to, without_gradients_between, under_autocast,
]  # fmt: skip


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_on_eager_kernels(fn):
    agree(fn, [between, retained, hooked, second], backend="aot_eager")


@pytest.mark.compiler
@pytest.mark.parametrize("fn", [lone_with_values_past_it, chunks, a_base_and_its_view])
def test_compiled(fn):
    agree(fn, [between, retained, hooked, second])


@pytest.mark.compiler
def test_a_lone_view_costs_no_graph_and_chunks_cost_one():
    for fn, graphs in ((lone, 1), (chunks, 2)):
        before, x = firebrick.graphs_compiled(), torch.randn(4, 4, requires_grad=True)
        firebrick.compile(fn)(x, x.detach())[-1].backward()
        assert firebrick.graphs_compiled() - before == graphs


@pytest.mark.compiler
def test_with_sizes_that_vary():
    compiled = firebrick.compile(chunks, dynamic=True)
    for size in (4, 6):
        x, w = (torch.randn(size, size, dtype=torch.float64, requires_grad=True) for _ in range(2))
        a, b, loss = compiled(x, w)
        for mine, plain in zip(torch.autograd.grad(loss, [a, b, x, w]), (b, a), strict=False):
            torch.testing.assert_close(mine, plain)
