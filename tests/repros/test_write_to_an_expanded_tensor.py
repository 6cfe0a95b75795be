"""Writes to a tensor that shows one element in several places ended in an internal error."""

import warnings

import torch
from same import same

import firebrick


def test_expanded_view():
    def fn(x):
        y = x * 2
        y.expand(3, 4).zero_()
        return y

    same(fn, torch.randn(1, 4), strict=False)


def test_expanded_argument():
    x = torch.ones(3, 1).expand(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = firebrick.compile(lambda x: (x.tril_(), x + 1), options={"strict": False})(x)
    assert torch.equal(made[1], x + 1)
