"""Gradients of gradients of a graph with symbols failed: its values were those of two modes of fake tensors.

The programs are the fuzzer's: a counter, a float or a dimension of 1 that is 4 later, and a gradient with `create_graph`.
"""

import pytest
from tests.fuzz.compare import compare
from tests.fuzz.features import generate


@pytest.mark.compiler
@pytest.mark.parametrize("seed", [25, 47])
def test_second_gradients(seed):
    assert compare(generate(seed, "varying")) is None
