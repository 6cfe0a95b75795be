"""A graph is cut where data decide a size or are checked, which a block of autocast can't be: the graph ends there, and
the block goes on behind it. It ran on eager kernels, or was an error under FIREBRICK_STRICT."""

import pytest
import torch

import firebrick

M = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))


def rows(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = M @ x
        z = y[: (y.sum() * 0 + 2).int().item()]
    return z.float() @ x


def masked(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = M @ x
        z = y[y > 0]
    return z.sum()


def checked(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = M @ x
        if y.sum() > 1e9:
            raise ValueError
        return y @ x


@pytest.mark.parametrize("fn", [rows, masked, checked])
def test_what_data_decide_ends_a_graph_in_a_block_of_autocast(fn):
    with torch.no_grad():
        torch.testing.assert_close(firebrick.compile(fn, options={"strict": True})(M), fn(M), atol=1e-2, rtol=2e-2)
    assert not torch.is_autocast_enabled("cpu")
