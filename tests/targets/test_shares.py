"""Threads share out the columns of a matmul in pieces, and take those that others have not begun."""

import pytest
import torch
import torch.nn.functional as F

import firebrick


@pytest.mark.compiler
@pytest.mark.parametrize("columns", [96, 600, 1100, 1111])
def test_every_column_is_computed_whatever_the_number_of_threads(columns):
    x, weight = torch.randn(70, 96), torch.randn(columns, 96)
    weight_of_columns = weight.t().contiguous()

    def f(x):
        return F.linear(x, weight), x @ weight_of_columns

    compiled, exact, before = firebrick.compile(f), x.double() @ weight.double().t(), torch.get_num_threads()
    with torch.no_grad():
        first = compiled(x)
        try:
            for threads in (1, 2, 3, 5, 2, 2, 2, 2):
                torch.set_num_threads(threads)
                for result, same in zip(compiled(x), first, strict=True):
                    assert torch.equal(result, same)
                    torch.testing.assert_close(result.double(), exact, atol=1e-4, rtol=1e-4)
        finally:
            torch.set_num_threads(before)
