"""`torch.tensor` of lists that hold tensors, and numbers that data decide or that vary."""

import pytest
import torch

import firebrick

X = torch.arange(6.0).reshape(2, 3) + 0.3

MADE = {
    "tensors and ints": lambda x: torch.tensor([x[0, 0], 1]),
    "nested": lambda x: torch.tensor([[x[0, 0], x[1, 0]], [1, 2.5]]),
    "of a dtype": lambda x: torch.tensor([x.shape[0], x[0, 0] * 2], dtype=torch.float64),
    "a float beside float64": lambda x: torch.tensor([x[0, 0].double(), 0.1]),
    "half beside a float": lambda x: torch.tensor([x[0, 0].half(), 0.1]),
    "int8 beside a bool": lambda x: torch.tensor([x[0, 0].to(torch.int8), True]),
    "bool beside an int": lambda x: torch.tensor([x[0, 0] > 0, 2]),
    "what item gives": lambda x: torch.tensor([x.sum().item(), 1.0]),
    "as_tensor": lambda x: torch.as_tensor([x[0, 0], x[1, 1]]),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_elements_are_joined_in_the_graph(made):
    compiled = firebrick.compile(made, fullgraph=True)
    for x in (X, X * 3):
        result, expected = compiled(x), made(x)
        assert result.dtype == expected.dtype and result.shape == expected.shape
        assert torch.equal(result, expected)


def test_a_number_that_varies():
    def made(x, n):
        return torch.tensor([x[0, 0], n])

    compiled = firebrick.compile(made, fullgraph=True)
    for n in (0.5, 0.25, 0.125):
        assert torch.equal(compiled(X, n), made(X, n))


RAGGED = {
    "a row": lambda x: torch.tensor([x[0], 1]),
    "two lengths": lambda x: torch.tensor([[x[0, 0]], [1, 2]]),
    "as many as equal lengths have": lambda x: torch.tensor([[x[0, 0], 1], [2], [3, 4, 5]]),
}


@pytest.mark.parametrize("made", RAGGED.values(), ids=RAGGED)
def test_ragged_lists_raise_as_in_eager(made):
    with pytest.raises((TypeError, ValueError)) as expected:
        made(X)
    with pytest.raises(type(expected.value)):
        firebrick.compile(made)(X)


def test_elements_with_gradients_are_detached():
    def made(x):
        return torch.tensor([x[0, 0], 1]), x * 2

    x = X.clone().requires_grad_()
    assert not firebrick.compile(made, fullgraph=True)(x)[0].requires_grad


def test_integers_of_floats_are_left_to_eager():
    def made(x):
        return torch.tensor([x[0, 0]], dtype=torch.int64)

    with pytest.raises(TypeError, match="only integer tensors"):
        firebrick.compile(made)(X)
