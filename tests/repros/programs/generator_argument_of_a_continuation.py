"""A continuation whose loop runs over a generator kept it alive when an exception ended the loop."""

SEEN = []


def counting(n, log):
    try:
        for i in range(n):
            yield i
    finally:
        log.append("closed")


def main(x, y, m, n, f, items, table, box):
    for v2, v3 in enumerate(x):
        pass
    for v10 in counting(3, SEEN):
        v13 = variadic
