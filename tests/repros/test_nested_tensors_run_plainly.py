"""A nested tensor as an argument raised, and so did the explanation of a guard that met one."""

import pytest
import torch

import firebrick
from firebrick.errors import Unsupported

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")


def doubled(x):
    return x * 2


def nested():
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])


def padded(x):
    return torch.nested.to_padded_tensor(x, 0.0)


def test_an_argument():
    assert torch.equal(padded(firebrick.compile(doubled)(nested())), padded(doubled(nested())))


def test_between_plain_tensors():
    call = firebrick.compile(doubled)
    assert torch.equal(call(torch.ones(3)), torch.full((3,), 2.0))
    assert torch.equal(padded(call(nested())), padded(doubled(nested())))
    assert torch.equal(call(torch.ones(4)), torch.full((4,), 2.0))


def test_made_inside():
    def function(x):
        return padded(torch.nested.nested_tensor([x, x[:1]]) * 2) + 1

    assert torch.equal(firebrick.compile(function)(torch.ones(2, 3)), function(torch.ones(2, 3)))


def test_fullgraph_names_it():
    with pytest.raises(Unsupported, match="nested tensor"):
        firebrick.compile(doubled, fullgraph=True)(nested())
