"""`callable("mean")` was true, since the class of text can be called."""


def main(x, y, m, n, f, items, table, box):
    return x * 2 if callable("mean") else x.mean(), callable(n), callable(str), callable(main), callable(items.append)
