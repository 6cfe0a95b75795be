"""A truth that is read from a tensor in a function and asked in functions that it calls ended a graph in each of them."""

import torch

import firebrick


def part(x, flag):
    y = x.sin()
    if flag:
        y = y * 2
    return y.cos()


def f(x):
    flag = (x > 100).any().item()
    for _ in range(3):
        x = part(x, flag) + 1
    return x


def test_the_graph_ends_where_the_truth_is_read():
    for x in (torch.ones(4), torch.full((4,), 200.0)):
        firebrick.reset()
        seen = firebrick.explain(f)(x)
        assert torch.equal(seen.result, f(x))
        assert len(seen.graphs) == 2
