"""The text of ordered and default dicts and of deques was that of plain dicts and lists."""

import collections


def main(x, y, m, n, f, items, table, box):
    made = collections.OrderedDict(a=1), collections.defaultdict(int, b=2), collections.deque([1])
    return x + 1, [repr(one) for one in made], "%r" % [n], collections.OrderedDict.fromkeys("ab")
