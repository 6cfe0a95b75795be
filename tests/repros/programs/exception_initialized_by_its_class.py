"""`super().__init__()` of an exception did not set its arguments."""


class Special(ValueError):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def main(x, y, m, n, f, items, table, box):
    try:
        raise Special(n)
    except Special as error:
        return x + error.code, str(error), error.args
