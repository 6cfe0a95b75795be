"""masked_scatter in loops: counts over rows and dimensions, masks that broadcast, sources of any layout."""

import pytest
import torch
from agree import agree, calls

import firebrick

pytestmark = pytest.mark.compiler


def rand(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


X = rand(5, 7, 12)
SOURCE = rand(500)
CASES = {
    "whole": (X, X > 0, SOURCE),
    "bf16": (X.bfloat16(), X > 0, SOURCE.bfloat16()),
    "whole numbers": (X.long(), X > 0, SOURCE.long()),
    "rows": (X, (X > 0)[0], rand(50, 12)),
    "the same for all of a row": (X, (X > 0)[:, :, :1], rand(40, 12)),
    "the same for all columns": (X, (X > 0)[:, :1], rand(12, 50).t()),
    "one row of values": (X[0, 0], X[:, 0] > 0, SOURCE),
    "nowhere": (X, X > 9, rand(12)),
    "everywhere": (X, X < 9, SOURCE),
    "strided": (X[:, ::2], (X > 0)[:, ::2], rand(2, 400)[:, ::2]),
    "a vector": (rand(4000), rand(4000) > 0, rand(4000)),
    "one element": (rand(1), rand(1) < 9, rand(1)),
}


@pytest.mark.parametrize("name", CASES)
def test_masked_scatter(name):
    assert calls(agree(lambda x, m, s: x.masked_scatter(m, s) * 2, *CASES[name])) == []


def test_features_take_the_places_of_tokens():
    tokens, features = torch.arange(35).view(5, 7) % 3, rand(40, 12)
    fn = lambda x, t, s: x.masked_scatter((t == 1).unsqueeze(-1).expand_as(x), s)  # noqa: E731
    assert calls(agree(fn, X, tokens, features)) == []


@pytest.mark.parametrize("count", [20, 0])
def test_too_few_values_raise_as_in_eager(count):
    fn = lambda x, m, s: x.masked_scatter(m, s) + 1  # noqa: E731
    for run in (fn, firebrick.compile(fn)):
        with pytest.raises(RuntimeError, match="Number of elements of source < number of ones in mask"):
            run(X, X > 0, rand(count))
