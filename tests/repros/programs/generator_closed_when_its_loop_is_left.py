"""A generator whose loop is left by `break` was not closed, so that its `finally` did not run."""

SEEN = []


def counting(n, log):
    try:
        for i in range(n):
            yield i
    finally:
        log.append("closed")


def inner(x):
    g = counting(2, SEEN)
    return x + next(g)


def main(x, y, m, n, f, items, table, box):
    for v in counting(3, SEEN):
        x = x + v
        if v == 1:
            break
    SEEN.append("after")
    for i, v in enumerate(counting(3, SEEN)):
        if v == 1:
            return inner(x)
