"""Asking a set for an object without a hash made the capture fail."""


def main(x, y, m, n, f, items, table, box):
    texts = []
    made = {1, 2}
    for use in (lambda: items in made, lambda: made.discard(items), lambda: made.remove(table), lambda: {items: 1}):
        try:
            use()
        except TypeError as error:
            texts.append(str(error))
    return x + len(texts), texts
