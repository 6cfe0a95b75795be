"""Objects whose end is seen, let go of in captured code, ended when the function returned."""

import contextlib

SEEN = []


def rows(x, name):
    try:
        yield x
        yield x + 1
    finally:
        SEEN.append(name)


class Noisy:
    made = 0

    def __init__(self, name):
        self.name = name
        type(self).made += 1

    def __del__(self):
        SEEN.append("del " + self.name)


def main(x, y, m, n, f, items, table, box):
    a = Noisy("a")
    print(x.sum().item())
    a = Noisy("b")
    SEEN.append("one")
    x = x + len([Noisy("c")]) + (1 if y.sum().item() > 0 else 2)
    SEEN.append("two")
    for i in range(2):
        a = Noisy(f"d{i}")
        print(i)
    SEEN.append("three")
    del a
    SEEN.append("four")
    try:
        b = Noisy("e")
        print(x.sum().item())
        raise ValueError(1)
    except ValueError as error:
        SEEN.append("five")
        b = None
    it = rows(x, "g")
    for r in it:
        x = x + r
        print(x.mean().item())
        break
    SEEN.append("six")
    it = [q for q in rows(y, "h") if q.sum().item() > 0]
    SEEN.append("seven")
    with contextlib.closing(rows(y, "k")) as it:
        x = x * next(it)
        print(x.sum().item())
    it = rows(x, "l")
    next(it)
    print(x.sum().item())
    it = iter([1, 2])
    SEEN.append("eight")
    return x * next(it)
