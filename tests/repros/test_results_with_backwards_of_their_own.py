"""One node of the autograd engine stood for all results of a graph: a backward of one freed what the others need, and
gave zeros, not nothing, to what only the others depend on."""

import pytest
import torch

import firebrick


def losses(x, a, b):
    return (x * a).relu().sum(), (x.exp() * b).sum()


def leaves():
    torch.manual_seed(0)
    return [torch.randn(3, 4, requires_grad=True) for _ in range(3)]


def backward_one_by_one(function):
    tensors = leaves()
    first, second = function(*tensors)
    first.backward()
    before = [None if t.grad is None else t.grad.clone() for t in tensors]
    second.backward()
    return [*before, *(t.grad for t in tensors)]


def test_each_of_two_losses_has_its_backward():
    expected = backward_one_by_one(losses)
    assert expected[2] is None
    compiled = firebrick.compile(losses)
    for _ in range(2):
        for one, other in zip(backward_one_by_one(compiled), expected, strict=True):
            assert (one is None and other is None) or torch.allclose(one, other)


def test_a_backward_of_both_losses_at_once():
    one, other = leaves(), leaves()
    sum(firebrick.compile(losses)(*one)).backward()
    sum(losses(*other)).backward()
    assert all(torch.allclose(a.grad, b.grad) for a, b in zip(one, other, strict=True))


def test_results_that_share_what_is_saved_are_freed_together():
    def shared(x, a, b):
        hidden = x.exp()
        return (hidden * a).sum(), (hidden * b).sum()

    for function in (shared, firebrick.compile(shared)):
        first, second = function(*leaves())
        first.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            second.backward()


def test_a_result_that_saves_nothing_is_shared_freely():
    def shared(x, a, b):
        hidden = x + 1
        return (hidden * 2).sum(), (hidden * 3).sum()

    tensors = leaves()
    first, second = firebrick.compile(shared)(*tensors)
    first.backward()
    second.backward()
    assert torch.equal(tensors[0].grad, torch.full((3, 4), 5.0))


@pytest.mark.parametrize("function", [torch.relu, torch.sign, torch.nn.functional.softplus, torch.cumsum])
def test_what_a_loss_does_not_reach_gets_no_gradient(function):
    def both(a, b):
        return b * b, function(a, 0) if function is torch.cumsum else function(a)

    a, b = (torch.randn(3).requires_grad_() for _ in range(2))
    firebrick.compile(both)(a, b)[0].sum().backward()
    assert a.grad is None
    assert torch.allclose(b.grad, 2 * b)


def test_a_loss_of_one_of_two_results_of_one_layer():
    def both(x, a, b):
        hidden = (x @ a.T).tanh()
        return hidden.sum(), (hidden * b[0, 0]).cumsum(0)

    for position in (0, 1):
        pair = leaves(), leaves()
        for tensors, f in zip(pair, (both, firebrick.compile(both)), strict=True):
            f(*tensors)[position].sum().backward()
        for one, other in zip(*pair, strict=True):
            assert (one.grad is None and other.grad is None) or torch.allclose(one.grad, other.grad)


def test_saved_tensors_die_with_their_backward():
    def graph(x, a, b):
        return (x * a).exp(), (x - b).exp()

    tensors = leaves()
    first, second = firebrick.compile(graph)(*tensors)
    second.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        second.sum().backward()
    first.sum().backward(retain_graph=True)
    first.sum().backward()
