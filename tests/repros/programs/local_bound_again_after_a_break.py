"""What a variable had held before a break was let go when the function returned, not when it was bound again."""

SEEN = []


def rows(x, name):
    try:
        yield x
    finally:
        SEEN.append(name)


def main(x, y, m, n, f, items, table, box):
    it = rows(x, "first")
    x = next(it) * 2
    print(x.sum().item())
    it = rows(y, "second")
    SEEN.append("between")
    x = x + next(it)
    print(x.sum().item())
    it = None
    SEEN.append("after")
    return x
