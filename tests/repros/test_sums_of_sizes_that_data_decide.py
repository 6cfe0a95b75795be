"""Sums of several terms of a number that data decide may be used behind a place where the graph is cut."""

import torch

import firebrick


def test_a_polynomial_of_an_item_is_compared():
    def function(x, t):
        n = int(t.max()) + 1
        if n * n > 1 << 40:
            raise ValueError(n)
        return x * (n * n + n + 1)

    compiled = firebrick.compile(function, fullgraph=True)
    for numbers in ([1, 2], [0, 7], [5, 5]):
        args = torch.arange(-3, 5), torch.tensor(numbers)
        torch.testing.assert_close(compiled(*args), function(*args))
