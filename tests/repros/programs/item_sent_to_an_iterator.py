"""An iterator that `yield from` goes over took what was sent to it, as if it were a generator."""


def main(x, y, m, n, f, items, table, box):
    def through(rows):
        yield from rows

    rows = through(m)
    return next(rows), rows.send(y)
