"""Two equal calls of an operator with several results, of which each uses another one.

The second is the first's result, which made only what its own users read: indices of `max_pool2d` were its maxima,
and graphs with two sorts or topks fell back to eager mode.
"""

import pytest
import torch
import torch.nn.functional as F

import firebrick

CALLS = {
    "max_pool": lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 2, return_indices=True)[1]),
    "adaptive": lambda x: (F.adaptive_max_pool2d(x, 3), F.adaptive_max_pool2d(x, 3, return_indices=True)[1]),
    "sort": lambda x: (x.sort(-1)[0] * 2, x.sort(-1)[1]),
    "topk": lambda x: (x.topk(3)[1], x.topk(3)[0].exp()),
    "max": lambda x: (x.max(-1)[0].sin(), x.max(-1)[1]),
    "cummax": lambda x: (x.cummax(-1)[0].sin(), x.cummax(-1)[1]),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_result_is_made(name):
    x = torch.randn(2, 3, 6, 8, generator=torch.Generator().manual_seed(0))
    found = firebrick.compile(CALLS[name], options={"cache": False, "strict": True})(x)
    for a, b in zip(
        torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(CALLS[name](x)), strict=True
    ):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)


def test_a_sort_in_a_condition_and_one_that_has_a_gradient():
    def call(x):
        return torch.where(x.sort(-1)[0] > 0, x.sort(-1)[0], 0.1).sum()

    grads = []
    for fn in (call, firebrick.compile(call, options={"cache": False, "strict": True})):
        x = torch.linspace(-1, 1, 12).view(3, 4).flip(0).requires_grad_()
        fn(x).backward()
        grads.append(x.grad)
    assert torch.equal(*grads)
