"""`del` of a property raised AttributeError."""


class Held:
    @property
    def value(self):
        return 3

    @value.deleter
    def value(self):
        self.gone = True


def main(x, y, m, n, f, items, table, box):
    held = Held()
    try:
        del held.value
    except AttributeError:
        return x
    return x + held.value, held.gone
