"""A method of a list that is known by identity made the capture fail."""

KEPT = []
KEEP = KEPT.append


def main(x, y, m, n, f, items, table, box):
    KEEP(n)
    return x + len(KEPT), KEPT
