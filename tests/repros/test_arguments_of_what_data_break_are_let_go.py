"""A capture that is tried again with numbers read in its guards kept the traceback of the first try, which holds the
frame and the user's arguments."""

import gc
import weakref

import torch

import firebrick


def test_an_argument_whose_sum_is_asked_for_lives_no_longer_than_the_call():
    def function(x):
        return x + 1 if x.sum().item() > 100 else x - 1

    compiled = firebrick.compile(function, backend="eager")
    x = torch.ones(3)
    seen = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        compiled(x)
        del x
        assert seen() is None
    finally:
        gc.enable()
