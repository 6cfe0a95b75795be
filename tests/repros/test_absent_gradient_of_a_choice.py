"""A loss that needs one result only gave zeros, not None, to what a `where` alone hands to another result."""

import torch

import firebrick


def test_no_gradient_where_none_flows():
    compiled = firebrick.compile(lambda x, y: (x.relu(), torch.where(x > 0, x.detach(), y)))
    x, y = (torch.linspace(-1, 1, 6).requires_grad_() for _ in range(2))
    compiled(x, y)[0].sum().backward()
    assert x.grad is not None
    assert y.grad is None
