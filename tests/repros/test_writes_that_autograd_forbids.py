"""Writes to several views of one tensor, and to values that the backward needs, raise in eager mode and not here."""

import pytest
import torch

import firebrick

SEVERAL = [
    lambda y: y.unbind(0),
    lambda y: y.split(1),
    lambda y: y.chunk(2),
    lambda y: torch.split(y, [1, 3]),
    lambda y: [v.view(1, -1) for v in y.split(2)],
    list,
]


def leaf(n=4):
    return torch.linspace(-1, 1, n).requires_grad_()


@pytest.mark.parametrize("views", SEVERAL)
@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("backend", ["firebrick", "aot_eager"])
def test_one_of_several_views(views, shown, backend):
    def inside(x):
        y = x * 2
        views(y)[0].mul_(3)
        return y

    def gives(x):
        y = x * 2
        return (y, *views(y)) if shown else views(y)

    for compile in (lambda f: f, firebrick.compile(backend=backend)):
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            compile(inside)(leaf())
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            compile(gives)(leaf())[-1].mul_(3)


def test_without_gradients_it_is_none():
    def gives(x):
        y = x * 2
        return y, y.unbind(0)

    y, parts = firebrick.compile(gives)(torch.ones(3))
    parts[0].mul_(3)
    assert torch.equal(y, torch.tensor([6.0, 2.0, 2.0]))


def test_a_view_without_history_gives_its_base_one():
    def gives(x):
        return x[0]

    for compile in (lambda f: f, firebrick.compile):
        x = torch.ones(3)
        compile(gives)(x).mul_(torch.tensor(2.0, requires_grad=True))
        assert x.requires_grad


def saves_result(x):
    y = x.exp()
    y.mul_(2)
    return y


def saves_argument_of_sine(x):
    y = x * 2
    z = y.sin()
    y.add_(1)
    return z


def writes_unrecorded(x):
    y = x * 2
    z = y * y
    with torch.no_grad():
        y.add_(1)
    return z


@pytest.mark.parametrize("function", [saves_result, saves_argument_of_sine, writes_unrecorded])
def test_values_that_the_backward_needs(function):
    for compile in (lambda f: f, firebrick.compile):
        result = compile(function)(leaf()).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            result.backward()


@pytest.mark.parametrize("function", [torch.exp, torch.sigmoid, lambda x: torch.softmax(x, 0), lambda x: x.tanh()])
def test_a_result_that_the_backward_needs(function):
    for compile in (lambda f: f, firebrick.compile):
        y = compile(lambda x: function(x))(leaf())
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
