"""What an exception's class handed to its base was not what the exception printed."""


class Failure(Exception):
    def __init__(self, code, t=None):
        super().__init__(f"failure {code}")
        self.code, self.t = code, t


def main(x, y, m, n, f, items, table, box):
    try:
        raise Failure(3, x)
    except Failure as error:
        items.append((str(error), error.args, error.code))
    raise ValueError from Failure(1)
