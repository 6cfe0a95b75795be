"""What a break left on the stack lived until the continuation returned; a weak reference to it was not empty."""

import weakref


class Box:
    made = 0

    def __init__(self, n, t):
        self.n = n

    @classmethod
    def make(cls, n):
        cls.made += 1
        return cls(n, None)


class Loud(Box):
    pass


def main(x, y, m, n, f, items, table, box):
    lost = weakref.ref(Box.make(n))
    kept = Loud.make(n)
    reference = weakref.ref(kept)
    print(x.sum().item())
    first = reference() is None
    kept = None
    return x * 2, lost() is None, first, reference() is None, weakref.ref(Box.make(y))().n
