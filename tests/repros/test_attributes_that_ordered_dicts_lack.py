"""That an OrderedDict has no attribute was not guarded: `hasattr` was answered once, when the code was captured."""

from collections import OrderedDict

import torch

import firebrick


def test_an_attribute_that_comes():
    held = OrderedDict(a=1)

    def f(x):
        return x + 1 if hasattr(held, "extra") else x

    compiled = firebrick.compile(f)
    assert compiled(torch.zeros(1)) == 0
    held.extra = True
    assert compiled(torch.zeros(1)) == 1
    del held.extra
    assert compiled(torch.zeros(1)) == 0
