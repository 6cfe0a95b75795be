"""The texts of wrong calls were not those of Python."""


def two(a, b, c=1, *, d=2):
    return a


def main(x, y, m, n, f, items, table, box):
    texts = []
    for args, options in (((), {}), ((1, 2, 3, 4), {}), ((1, 2), {"z": 1}), ((1, 2), {"a": 1})):
        try:
            two(*args, **options)
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts
