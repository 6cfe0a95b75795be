"""Collectives in compiled functions run once a call, in the program's order, also where nobody uses a result."""

import pytest
from collectives import FUNCTIONS, compare


@pytest.mark.compiler
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_collectives_are_those_of_plain_python(ranks, name, grad):
    assert all(ranks.run(compare, name, grad))
