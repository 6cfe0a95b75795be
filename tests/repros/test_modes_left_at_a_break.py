"""A graph that ended inside of an autocast block left it on, in the program and in the capture."""

import pytest
import torch

import firebrick

M = torch.arange(9.0).reshape(3, 3) / 7


def nested(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = M @ x
        firebrick.graph_break()
        b = M @ x
        with torch.autocast("cpu", enabled=False):
            firebrick.graph_break()
            c = M @ x
        d = M @ x
    return a, b, c, d, M @ x


def branch(x):
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        y = M @ x
        if y.sum() > 0:
            y = y + 1
        y = M @ y
    return y, M @ x


def refused(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = M @ x
        if y.sum() > 0:
            raise ValueError
    return y


@torch.autocast("cpu", dtype=torch.bfloat16)
def decorated(x):
    y = M @ x
    firebrick.graph_break()
    return y @ x


@pytest.mark.parametrize("function", [nested, branch, decorated])
def test_graph_that_ends_in_a_block(function):
    compiled = firebrick.compile(function)
    for _ in range(2):
        got, want = compiled(M), function(M)
        assert not torch.is_autocast_enabled("cpu")
        torch.testing.assert_close(got, want)


def test_exception_out_of_a_block():
    compiled = firebrick.compile(refused)
    for _ in range(2):
        with pytest.raises(ValueError):
            compiled(M)
        assert not torch.is_autocast_enabled("cpu")
