"""An iterator that is an object of a class was iterated for ever."""


class Three:
    def __init__(self):
        self.n = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.n += 1
        if self.n > 3:
            raise StopIteration
        return self.n


def main(x, y, m, n, f, items, table, box):
    return x + sum(Three()), 2 in Three(), list(zip(Three(), Three()))
