"""as_strided may read what lies between and behind the elements of an argument; the graph knows those elements only."""

import pytest
import torch
from same import same

import firebrick
from firebrick.errors import FirebrickError


def neighbours(x):
    return torch.as_strided(x, (2,), (1,), 18) + 1


@pytest.mark.compiler
def test_memory_between_and_behind():
    wide = torch.arange(24.0)
    inside = wide.as_strided((8, 1), (3, 2))
    assert torch.equal(firebrick.compile(neighbours, options={"strict": True})(inside), neighbours(inside))
    behind = wide.as_strided((7, 1), (3, 2))
    with pytest.raises(FirebrickError, match="outside of the tensor"):
        firebrick.compile(neighbours, options={"strict": True})(behind)
    with pytest.warns(UserWarning, match="outside of the tensor"):
        assert torch.equal(firebrick.compile(neighbours, options={"strict": False})(behind), neighbours(behind))


@pytest.mark.compiler
def test_windows_inside_are_compiled():
    same(lambda x: x.as_strided((3, 4), (2, 1), 1) * 2, torch.randn(10))
