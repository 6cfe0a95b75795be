"""An attribute that was both made and deleted in captured code was deleted once more."""


def main(x, y, m, n, f, items, table, box):
    box.late = 1
    z = x + box.late
    del box.late
    return z, hasattr(box, "late")
