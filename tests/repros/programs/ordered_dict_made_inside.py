"""An OrderedDict that captured code returns was empty."""

import collections


def main(x, y, m, n, f, items, table, box):
    m[0] += 1
    return collections.OrderedDict(a=n)
