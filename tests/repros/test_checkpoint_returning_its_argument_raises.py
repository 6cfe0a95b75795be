"""A checkpointed function that gives its argument back may still raise: what it calls is not dropped."""

import pytest
import torch
import torch.nn.functional as F

import firebrick

TABLE = torch.ones(3, 3)


def looked_up(y):
    F.embedding(torch.tensor([9]), TABLE)
    return y


def checkpointed(y):
    return torch.utils.checkpoint.checkpoint(looked_up, y, use_reentrant=False) + 1


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_error_is_raised(requires_grad):
    y = torch.ones(3, requires_grad=requires_grad)
    with pytest.raises(IndexError, match="out of range"):
        firebrick.compile(checkpointed, backend="eager", fullgraph=True)(y)


def test_its_argument_is_still_its_argument():
    def f(y):
        return torch.utils.checkpoint.checkpoint(lambda t: t, y, use_reentrant=False)

    y = torch.ones(3, requires_grad=True)
    assert firebrick.compile(f, backend="eager")(y) is f(y)
