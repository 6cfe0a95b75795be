"""Two weak references to one object were not equal."""

import weakref


def main(x, y, m, n, f, items, table, box):
    return x + 1, weakref.ref(box) == weakref.ref(box), weakref.ref(box) is weakref.ref(box)
