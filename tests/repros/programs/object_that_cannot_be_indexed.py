"""Objects without special methods raised AttributeError where Python raises TypeError."""


class Plain:
    pass


def main(x, y, m, n, f, items, table, box):
    texts = []
    for use in (lambda: Plain()[0], lambda: next(Plain()), lambda: abs(Plain()), lambda: Plain() - 1, lambda: -Plain()):
        try:
            use()
        except TypeError as error:
            texts.append(str(error))
    return x + 1, texts
