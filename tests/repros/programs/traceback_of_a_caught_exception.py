"""A caught exception had no traceback."""


def main(x, y, m, n, f, items, table, box):
    try:
        raise ValueError("a")
    except ValueError as error:
        return x + 1, error.__traceback__ is not None
