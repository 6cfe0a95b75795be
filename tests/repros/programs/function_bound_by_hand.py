"""`function.__get__(owner)` gave a method of which the owner was the function."""

import functools


class Thing:
    @functools.singledispatchmethod
    def scale(self, a):
        return a

    @scale.register
    def _(self, a: int):
        return a + 7


def double(self, x):
    return x * 2


def tagged(x):
    return x + 1


tagged.tag = 3


def main(x, y, m, n, f, items, table, box):
    thing = Thing()
    copy = functools.wraps(tagged)(lambda x: x)
    return (
        x * thing.scale(n),
        thing.scale("a"),
        double.__get__(thing)(y),
        double.__get__(None, Thing)(thing, y),
        copy.tag,
    )
