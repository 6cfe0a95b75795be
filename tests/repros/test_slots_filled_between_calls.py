"""That a slot is empty was not guarded: filled between two calls, it was still read as empty."""

import pytest
import torch

import firebrick


class Slotted:
    __slots__ = ("scale",)


class Derived(Slotted):
    pass


class Answers(Slotted):
    def __getattr__(self, name):
        return 5


def asks(x, given):
    return x * 2 if hasattr(given, "scale") else x * 3


def reads(x, given):
    return x * getattr(given, "scale", 4)


@pytest.mark.parametrize("cls", [Slotted, Derived, Answers])
@pytest.mark.parametrize("function", [asks, reads])
def test_a_slot_is_filled(function, cls):
    compiled, given, x = firebrick.compile(function, backend="eager"), cls(), torch.ones(2)
    for scale in (None, 7, 9):
        if scale is not None:
            given.scale = scale
        assert torch.equal(compiled(x, given), function(x, given))
