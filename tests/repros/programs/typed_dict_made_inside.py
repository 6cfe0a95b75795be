"""A TypedDict refuses `issubclass`, which capture asked."""

import typing


class Sizes(typing.TypedDict):
    wide: int


def main(x, y, m, n, f, items, table, box):
    made = Sizes(wide=n)
    try:
        isinstance(made, Sizes)
    except TypeError as error:
        return x * made["wide"], str(error)
