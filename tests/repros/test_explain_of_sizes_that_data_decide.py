"""`explain` told a graph break where `compile` makes one graph of sizes that data decide."""

import pytest
import torch

import firebrick


def positive(x):
    kept = x[x > 0]
    if kept.numel() == 0:
        return x - 100
    return (kept.exp() * kept.shape[0]).sum()


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_explain_tells_one_graph_and_no_break(grad, sign):
    x = (sign * torch.ones(3)).requires_grad_(grad)
    told = firebrick.explain(positive)(x)
    assert (len(told.graphs), len(told.breaks)) == (1, 0)
    assert torch.equal(told.result, positive(x))
