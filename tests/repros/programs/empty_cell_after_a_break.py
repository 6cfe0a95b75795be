"""After a break a local in an empty cell was called a free variable."""

SEEN = []


def main(x, y, m, n, f, items, table, box):
    if n > 100:
        v = 1
    print(x.sum().item())

    def inner():
        return v * f

    try:
        v + 1
    except NameError as error:
        SEEN.append((type(error), str(error)))
    try:
        x = x + v
    except NameError as error:
        print(error)
        SEEN.append((type(error), str(error)))
    try:
        inner()
    except NameError as error:
        SEEN.append((type(error), str(error)))
    v = 2
    x = x * inner()
    del v, f
    print(x.sum().item())
    try:
        return x * f
    except NameError as error:
        SEEN.append((type(error), str(error)))
    return x * v
