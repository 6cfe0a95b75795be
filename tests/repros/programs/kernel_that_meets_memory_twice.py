"""A kernel refuses tensors that overlap in part, fake tensors do not: effects made before it were lost."""

SEEN = []


def main(x, y, m, n, f, items, table, box):
    SEEN.append("before")
    y = m[0]
    y.add_(1)
    m.sub_(y)
