"""A write to an argument that is a result of other calls and wants gradients was refused with fullgraph, as to a leaf."""

import pytest
import torch

import firebrick


def _rows(y, z):
    y[0] = z[0]
    return y.sin()


def _view_before(y, z):
    flat = y.view(-1)
    y.mul_(2)
    return flat * 3 + z.view(-1)


def _twice(y, z):
    y.mul_(2)
    between = y.cumsum(0)
    y.add_(1)
    return between + z


def _nothing_recorded(y, z):
    with torch.no_grad():
        y[0].zero_()
    y.mul_(3)
    return y * z


WRITES = {
    "product": lambda y, z: y.mul_(2) + z,
    "argument": lambda y, z: y.mul_(2),
    "view": lambda y, z: y.mul_(2).view(-1),
    "through a view": lambda y, z: y.view(-1).mul_(3) * z.view(-1),
    "copy": lambda y, z: (y.copy_(z), z * 2)[1],
    "detached": lambda y, z: (y.detach().zero_(), y * z)[1],
    "rows": _rows,
    "view before": _view_before,
    "twice": _twice,
    "not recorded": _nothing_recorded,
}


def _results(function, like):
    torch.manual_seed(0)
    a, z = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    base = a * 2
    y = base if like == "whole" else base[:]
    found = function(y, z)
    (found.sin().sum() + base.square().sum()).backward()
    return found.detach(), base.detach(), a.grad, z.grad, found is y


@pytest.mark.parametrize("like", ["whole", "view"])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_one_graph(name, like):
    wanted = _results(WRITES[name], like)
    found = _results(firebrick.compile(WRITES[name], fullgraph=True), like)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("fullgraph", [True, False])
def test_leaves_and_retained_gradients(fullgraph):
    compiled = firebrick.compile(lambda y: y.mul_(2) * 3, fullgraph=fullgraph)
    for kind in ("result", "leaf", "result") if fullgraph else ("result", "retained", "result", "leaf", "result"):
        leaf = torch.ones(3, requires_grad=True)
        y = leaf if kind == "leaf" else leaf * 2
        if kind == "leaf":
            with pytest.raises(RuntimeError, match="leaf Variable"):
                compiled(y)
            continue
        if kind == "retained":
            y.retain_grad()
        compiled(y).sum().backward()
        assert leaf.grad.tolist() == [12.0] * 3 and (kind != "retained" or y.grad.tolist() == [3.0] * 3)


def test_gradients_of_gradients_without_fullgraph():
    leaf = torch.full((3,), 2.0, requires_grad=True)
    y = firebrick.compile(lambda y: y.mul_(2) ** 3)(leaf * 1)
    (first,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    assert first.tolist() == [96.0] * 3 and second.tolist() == [96.0] * 3


def test_what_retains_its_gradient_is_named():
    y = torch.ones(3, requires_grad=True) * 2
    y.retain_grad()
    with pytest.raises(firebrick.errors.Unsupported, match="y is written to, whose gradient is to be retained"):
        firebrick.compile(lambda y: y.mul_(2), fullgraph=True)(y)


def test_a_write_to_what_is_saved_is_refused_as_in_eager_mode():
    leaf = torch.ones(3, requires_grad=True)
    y = leaf.exp()
    found = firebrick.compile(lambda y: y.mul_(2), fullgraph=True)(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        found.sum().backward()
