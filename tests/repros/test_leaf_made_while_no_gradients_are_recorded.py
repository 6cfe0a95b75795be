"""`requires_grad_()` of a tensor that the graph has made ended the graph, also where no gradients are recorded and only
the tensor's own flag differs, as in an attention that stands for a missing kernel."""

import pytest
import torch

import firebrick


def stands_for_a_kernel(x):
    with torch.no_grad():
        zeros = torch.zeros_like(x).requires_grad_()
        return zeros + x, zeros.requires_grad, zeros.is_leaf, zeros.grad_fn


def leaves(x):
    with torch.no_grad():
        leaf = x.sin().requires_grad_()
        views = leaf.view(-1), torch.reshape(leaf, (4, 3)), leaf[1], leaf.T, *leaf.unbind()
    return leaf, [leaf], *views


def is_off_again(x):
    with torch.no_grad():
        y = x.sin().requires_grad_()
        y.requires_grad_(False)
    return y, y.requires_grad, y * 2


def used_with_gradients(x):
    with torch.no_grad():
        leaf = x.sin().requires_grad_()
    return leaf, (leaf * 2).sum()


@pytest.mark.parametrize("function", [stands_for_a_kernel, leaves, is_off_again])
def test_it_stays_in_the_graph(function):
    x = torch.randn(3, 4)
    compiled = firebrick.compile(function, fullgraph=True)
    for _ in range(2):
        ours, plain = compiled(x), function(x)
        torch.testing.assert_close(ours, plain) if function is not stands_for_a_kernel else None
        for one, other in zip(ours, plain, strict=True):
            if isinstance(one, torch.Tensor):
                torch.testing.assert_close(one, other)
                assert (one.requires_grad, one.is_leaf) == (other.requires_grad, other.is_leaf)
            elif not isinstance(one, list):
                assert one == other
    if function is leaves:
        assert ours[0] is ours[1][0]


@pytest.mark.parametrize("detach", [lambda leaf: leaf.detach(), lambda leaf: leaf.data])
def test_it_is_detached_behind_the_graph(detach):
    def function(x):
        with torch.no_grad():
            leaf = x.sin().requires_grad_()
            return leaf, detach(leaf)

    ours = firebrick.compile(function)(torch.randn(3))
    assert [one.requires_grad for one in ours] == [True, False]


def test_a_use_that_records_gradients():
    leaf, total = firebrick.compile(used_with_gradients, fullgraph=True)(torch.randn(3, 4))
    total.backward()
    torch.testing.assert_close(leaf.grad, torch.full((3, 4), 2.0))
