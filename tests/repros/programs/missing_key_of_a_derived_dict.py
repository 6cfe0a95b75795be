"""`__missing__` of a class derived from dict was not called."""

import collections


class Doubling(dict):
    def __missing__(self, key):
        return key * 2


def main(x, y, m, n, f, items, table, box):
    try:
        return x + Doubling()[3], collections.Counter("aab")["q"]
    except KeyError:
        return x
