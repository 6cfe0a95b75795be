"""A deque with fewer items than its `maxlen` lost its first items."""

import collections


def main(x, y, m, n, f, items, table, box):
    q = collections.deque([1, 2, 3], maxlen=4)
    q.append(4)
    q.append(5)
    return x + q[0], list(q)
