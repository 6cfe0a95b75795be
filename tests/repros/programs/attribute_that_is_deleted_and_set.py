"""An attribute that was deleted and set again kept its place among the attributes."""


class Box:
    def __init__(self, n, t):
        self.n, self.t, self.items = n, t, [n]


Loud = Box


def main(x, y, m, n, f, items, table, box):
    del box.n
    box.n = 3
    box.made = 1
    del box.made
    return x * 2
