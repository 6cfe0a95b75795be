"""A break that moved before a loop left the loop in the middle, its generator an argument of the continuation."""

SEEN = []


def counting(n, log):
    try:
        for i in range(n):
            yield i
    finally:
        log.append("closed")


def main(x, y, m, n, f, items, table, box):
    for v in counting(3, SEEN):
        if m.mean().item() > 0:
            break
    SEEN.append("after")
    return undefined(x)
