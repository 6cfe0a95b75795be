"""New objects told apart by address: a tuple of items was gone when the next was made where it had lain, which then
left as the first one's, and was a copy of it."""

import collections
import copy

import pytest
import torch

import firebrick


class Items(list):
    pass


class Holder:
    def __init__(self, value):
        self.value = value


def lists(x):
    return Items([x + 1]), Items([x * 2]), Items([x * 3])


def deques(x):
    return collections.deque([x + 1]), collections.deque([x * 2]), collections.deque([x * 3])


def functions(x):
    def first(*, a=x + 1):
        return a

    def second(*, a=x * 2):
        return a

    def third(*, a=x * 3):
        return a

    return first.__kwdefaults__["a"], first, second, third


def copies(x):
    holders = Holder(1), Holder(2), Holder(3)
    return x + 1, copy.deepcopy([holder.__dict__ for holder in holders])


def given_copies(x, holders):
    return x + 1, copy.deepcopy([holder.__dict__ for holder in holders])


def plain(results):
    return [r() if callable(r) else list(r) if isinstance(r, (list, collections.deque)) else r for r in results]


@pytest.mark.parametrize("fn", [lists, deques, functions, copies])
def test_each_leaves_as_itself(fn):
    x = torch.tensor(10.0)
    compiled = firebrick.compile(fn, fullgraph=True)
    assert plain(compiled(x)) == plain(fn(x))
    assert plain(compiled(x + 1)) == plain(fn(x + 1))


def test_copies_of_what_was_given():
    x, holders = torch.tensor(10.0), [Holder(1), Holder(2), Holder(3)]
    assert firebrick.compile(given_copies, fullgraph=True)(x, holders) == given_copies(x, holders)
