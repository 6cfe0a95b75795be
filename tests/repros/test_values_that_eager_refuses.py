"""Numbers that eager PyTorch's kernel refuses when it sees them, and its decomposition doesn't look at."""

import pytest
import torch
import torch.nn.functional as F

import firebrick

pytestmark = pytest.mark.compiler


def refuses(compiled, function, *args):
    with pytest.raises(RuntimeError) as wanted:
        function(*args)
    with pytest.raises(RuntimeError) as raised:
        compiled(*args)
    assert str(raised.value) == str(wanted.value)


def test_one_hot():
    def function(i):
        return F.one_hot(i, 10).float() * 2

    compiled = firebrick.compile(function)
    i = torch.randint(0, 10, (64,))
    assert torch.equal(compiled(i), function(i))
    refuses(compiled, function, i + 5)
    refuses(compiled, function, i - 5)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("wrong", [2.0, -0.5, float("nan")])
def test_binary_cross_entropy(wrong, grad):
    compiled = firebrick.compile(F.binary_cross_entropy)
    x, target = torch.rand(7).requires_grad_(grad), torch.rand(7)
    torch.testing.assert_close(compiled(x, target), F.binary_cross_entropy(x, target))
    bad = torch.rand(7).index_fill(0, torch.tensor(3), wrong)
    refuses(compiled, F.binary_cross_entropy, bad.clone().requires_grad_(grad), target)
    refuses(compiled, F.binary_cross_entropy, x, bad)


def test_max_unpool():
    def function(x, places):
        return F.max_unpool2d(x, places, 2) + 1

    x, places = F.max_pool2d(torch.randn(1, 2, 6, 6), 2, return_indices=True)
    compiled = firebrick.compile(function)
    assert torch.equal(compiled(x, places), function(x, places))
    places[0, 1, 2, 0] = -5  # one alone: of several, eager names the one that a thread of its meets
    refuses(compiled, function, x, places)


@pytest.mark.parametrize("grad", [False, True])
def test_assertions_of_the_program(grad):
    def function(x):
        torch._assert_async((x > 0).all(), "not {positive}")
        return x * 2

    compiled = firebrick.compile(function)
    x = torch.rand(3) + 1
    x.requires_grad_(grad)
    assert torch.equal(compiled(x), function(x))
    refuses(compiled, function, -x)
