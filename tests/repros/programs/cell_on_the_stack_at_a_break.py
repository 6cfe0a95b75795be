"""A break between LOAD_CLOSURE and MAKE_FUNCTION passed a cell to the continuation."""


def helper1():
    pass


def main(x, y, m, n, f, items, table, box):
    v5 = -y
    v6 = (helper1(x) for v7 in x)
    v8 = [v5, *v6]
