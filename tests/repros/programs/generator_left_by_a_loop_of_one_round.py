"""A generator that the first round of a loop leaves was closed when the function returned, not at once."""

SEEN = []


def main(x, y, m, n, f, items, table, box):
    def rows():
        try:
            yield y
        finally:
            SEEN.append("left")

    for row in rows():
        x = x + row
        break
    SEEN.append("after")
    return x
