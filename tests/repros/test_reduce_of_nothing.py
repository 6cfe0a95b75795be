"""`functools.reduce` of nothing raised StopIteration in captured code, where Python raises TypeError."""

import functools
import operator

import torch
from compiling import Compiled


def test_reduce_of_nothing():
    def f(x):
        try:
            return functools.reduce(operator.add, [])
        except TypeError:
            return x + 1

    assert Compiled(f)(torch.ones(2)).tolist() == [2.0, 2.0]
