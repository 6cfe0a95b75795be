"""A Counter made inside raised KeyError for a key that it lacks, as did any dict with a `__missing__` in Python."""

import collections


def main(x, y, m, n, f, items, table, box):
    try:
        return x + collections.Counter(items)[77]
    except LookupError:
        return x + 100
