"""The text of a member of a `str` enum was that of its name."""

import enum


class Name(str, enum.Enum):
    ONE = "one"


CHOSEN = Name.ONE


def main(x, y, m, n, f, items, table, box):
    return x + 1, CHOSEN == "one", CHOSEN.upper()
