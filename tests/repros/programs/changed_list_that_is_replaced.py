"""A list that changed before another took its place was looked for at its old place."""


class Box:
    def __init__(self, n, t):
        self.n, self.t, self.items = n, t, [n]


Loud = Box


def main(x, y, m, n, f, items, table, box):
    box.n += 1
    box.items.append(n)
    box.items = []
    return x * 2
