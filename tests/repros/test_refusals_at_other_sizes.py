"""What eager refuses where a size is 0 is refused where that size is an expression, which other calls make 0."""

import pytest
import torch
import torch.nn.functional as F

import firebrick

CALLS = {
    "median": lambda x: x.median(1).values,
    "mode": lambda x: x.mode(1).values,
    "amax": lambda x: x.amax(1),
    "argmax": lambda x: x.argmax(1),
    "aminmax": lambda x: x.aminmax(dim=1).max,
    "cummax beside max": lambda x: x.cummax(1).values.max(1).values,
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[:, None], 2),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x.transpose(1, 2), 2),
    "interpolate": lambda x: F.interpolate(x.transpose(1, 2), size=5, mode="linear"),
    "interpolate nearest": lambda x: F.interpolate(x.transpose(1, 2), size=5),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_size_that_comes_to_be_0(name):
    def function(x):
        return CALLS[name](x[:, : x.shape[1] - 1])

    compiled = firebrick.compile(function)
    for size in (4, 6, 1, 5):
        x = torch.randn(2, size, 3)
        try:
            expected = function(x)
        except (RuntimeError, IndexError) as error:
            assert size == 1
            with pytest.raises(type(error)):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), expected)


def test_an_integer_that_varies_beside_a_size_of_0():
    def function(x, k):
        return F.interpolate(x, size=k, mode="linear")

    compiled, x = firebrick.compile(function), torch.zeros(1, 4, 0)
    for k in (7, 6, 5):
        with pytest.raises(RuntimeError, match="greater than 0"):
            compiled(x, k)


def test_a_size_of_data_that_comes_to_be_0():
    def function(x):
        return x[x > 0].max()

    compiled = firebrick.compile(function)
    assert compiled(torch.tensor([1.0, -2.0, 3.0])) == 3
    with pytest.raises((RuntimeError, IndexError)):
        compiled(-torch.ones(3))
