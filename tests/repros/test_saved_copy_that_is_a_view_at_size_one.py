"""What was taken to be a copy, before a size was known to be 1, is a view there: eager's check of versions raises."""

import pytest
import torch

import firebrick


def test_a_write_to_what_is_saved_only_where_a_size_is_one():
    linear = torch.nn.Linear(4, 4)

    def function(x):
        y = x.sin().transpose(0, 1).sin().contiguous().transpose(0, 1)
        z = linear(y)
        y.index_fill_(1, torch.tensor([0]), 2.0)
        return z.mean(0), y

    compiled = firebrick.compile(function)
    for size in (5, 3, 1, 2):
        x = torch.randn(size, 3, 4, requires_grad=True)
        loss = sum(t.square().sum() for t in compiled(x))
        if size == 1:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        else:
            ours, _ = torch.autograd.grad(loss, [x, linear.weight])
            plain, _ = torch.autograd.grad(sum(t.square().sum() for t in function(x)), [x, linear.weight])
            torch.testing.assert_close(ours, plain)
