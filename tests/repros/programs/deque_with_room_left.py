"""A deque made of fewer items than it may hold lost some."""

import collections


def main(x, y, m, n, f, items, table, box):
    kept = collections.deque(items, 5)
    kept.append(7)
    kept.extendleft([8, 9])
    return x + len(kept), kept, collections.deque(items, 0), collections.deque(items, 2)
