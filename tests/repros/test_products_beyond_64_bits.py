"""Products of sizes and integers that vary wrapped around in kernels where they are larger than 64 bits have."""

import pytest
import torch

import firebrick


def same(function, *args):
    """Whether compiled code gives what the function gives, or raises what it raises."""
    compiled = firebrick.compile(function)
    for row in args:
        try:
            wanted = function(*row)
        except Exception as error:
            with pytest.raises(type(error)):
                compiled(*row)
        else:
            torch.testing.assert_close(compiled(*row), wanted)


def test_cube_of_an_integer():
    numbers = torch.arange(3)
    same(lambda x, n: x + n * n * n, *[(numbers, n) for n in (3, 4, 5, 1 << 20, 1 << 30, 7)])
    same(lambda x, n: x + n * n * n // (n * n), *[(numbers, n) for n in (3, 4, 1 << 30, 7)])


def test_size_of_a_new_tensor():
    same(lambda x, n: torch.zeros(n * n * n) + x, *[(torch.ones(1), n) for n in (3, 4, 1 << 22, 6)])


def test_large_multiple_of_a_size():
    same(lambda x: x.sum() + x.shape[0] * 10**17, *[(torch.ones(n),) for n in (3, 4, 500, 5)])
