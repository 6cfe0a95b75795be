"""`copy.copy` and `copy.deepcopy` of an instance with slots that was given copied its `__dict__` alone."""

import copy

import pytest
import torch

import firebrick


class Slotted:
    __slots__ = ("empty", "items", "scale")

    def __init__(self):
        self.scale, self.items = 2, [3]


class Mixed(Slotted):
    def __init__(self):
        super().__init__()
        self.more = 5


class Private(Slotted):
    __slots__ = ("__hidden", "scale")

    def __init__(self):
        super().__init__()
        self.__hidden = 7

    @property
    def hidden(self):
        return self.__hidden


class Rows(list):
    __slots__ = ("scale", "items")

    def __init__(self):
        super().__init__([1, 2])
        self.scale, self.items = 4, []


class Doubling(Slotted):
    def __setattr__(self, name, value):
        super().__setattr__(name, value * 2)


def copied(x, given):
    other = copy.copy(given)
    other.scale += 1
    own = getattr(other, "more", 0), getattr(other, "hidden", 0)
    return x * given.scale + other.scale, other.items is given.items, hasattr(other, "empty"), own, type(other), other


def deeply(x, given):
    other = copy.deepcopy(given)
    other.items.append(1)
    return x * other.scale, len(given.items), other.items, hasattr(other, "empty"), type(other), other


@pytest.mark.parametrize("cls", [Slotted, Mixed, Private, Rows])
@pytest.mark.parametrize("function", [copied, deeply])
def test_slots_are_copied(function, cls):
    x = torch.ones(2)
    *got, other = firebrick.compile(function, backend="eager", fullgraph=True)(x, cls())
    *want, expected = function(x, cls())
    assert torch.equal(got[0], want[0])
    assert got[1:] == want[1:]
    assert (other.scale, other.items) == (expected.scale, expected.items)


def test_a_class_that_sets_its_slots_itself():
    x, given = torch.ones(2), Doubling()
    got, want = firebrick.compile(copied, backend="eager")(x, given), copied(x, given)
    assert torch.equal(got[0], want[0])
    assert got[-1].scale == want[-1].scale
