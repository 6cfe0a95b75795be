"""`flip` of a tensor without dimensions, which takes dimension 0 and -1, divided by the number of its dimensions."""

import pytest
import torch

import firebrick


@pytest.mark.parametrize("dim", [0, -1, ()])
def test_it_is_the_number(dim):
    compiled = firebrick.compile(lambda x: x.sum().flip(dim) * 2, options={"cache": False, "strict": True})
    assert compiled(torch.ones(3)).item() == 6
