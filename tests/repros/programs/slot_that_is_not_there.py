"""An attribute that a class with slots can't have was written after the captured code, outside of its `try`."""


class Slotted:
    __slots__ = ("a",)


def main(x, y, m, n, f, items, table, box):
    made = Slotted()
    try:
        made.b = 1
    except AttributeError as error:
        return x + 1, str(error)
    return x
