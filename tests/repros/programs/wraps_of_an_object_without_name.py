"""functools.wraps of a callable object without __name__ raised."""

import collections, contextlib, dataclasses, enum, functools, itertools, math, operator


def scaled(factor):

    def decorate(fn):

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            pass

    return decorate


def main(x, y, m, n, f, items, table, box):
    v2 = box
    v4 = scaled(2)(v2)
