"""A recompile looked for a value below something that is None this time, and raised TypeError."""


class Box:
    def __init__(self, n, t):
        pass

    def bump(self, by):
        pass


class Loud(Box):
    def bump(self, by):
        super()


def main(x, y, m, n, f, items, table, box):
    v7 = box.bump(int(x.sum().item()))
    match [int for q in x]:
        case []:
            pass
