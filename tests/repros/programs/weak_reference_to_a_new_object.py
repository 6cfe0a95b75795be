"""An object that only a weak reference named behind a graph break died there, before the end of the function."""

import weakref


class Thing:
    def __init__(self, value):
        self.value = value


HELD = Thing(3)


def main(x, y, m, n, f, items, table, box):
    box = Thing(n)
    reference = weakref.ref(box)
    lost = weakref.ref(Thing(n))
    return x * reference().value, lost() is None, weakref.ref(HELD)().value, broken(x, n)


def broken(x, n):
    box = Thing(n)
    reference = weakref.ref(box)
    print(x)
    return x * reference().value
