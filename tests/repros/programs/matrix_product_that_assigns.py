"""`x @= m` made a new tensor, but code of the graph then took the old one's name for it."""


def main(x, y, m, n, f, items, table, box):
    old = x
    x @= m.t() @ m
    old[0] = 3.5
    return x, old
